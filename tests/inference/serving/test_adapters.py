"""Adapters are read beside the waves of a worker, and put in between them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from pie_inference.adapters import adapters as loaded_adapters
from pie_inference.adapters import loading
from pie_inference.adapters.files import read_adapter
from pie_inference.config import WorkerConfig
from pie_inference.protocol import (
    AdapterLoaded,
    DropAdapter,
    LoadAdapter,
    RunWave,
    Shutdown,
    ToWorker,
    WaveDone,
    decode_from_worker,
    encode,
)
from pie_inference.protocol.frames import FrameReader, pack, unpack
from pie_inference.serving.local import LocalTransport
from pie_inference.serving.loop import serve
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, ints
from tests.helpers.adapters import make_adapter
from tests.helpers.guard import HANG_SECONDS

T = TypeVar("T")


@dataclass
class Scene:
    """A worker whose loop runs in a thread, at the other end of a socket. Files are read once `may_read` is set."""

    worker: Worker
    ours: socket.socket
    may_read: threading.Event
    begun: threading.Event

    def __post_init__(self) -> None:
        self._frames = FrameReader()
        self.ours.settimeout(HANG_SECONDS)

    def tell(self, message: ToWorker) -> None:
        self.ours.sendall(b"".join(pack(encode(message))))

    def hear(self, kind: type[T]) -> T:
        while (frame := self._frames.next()) is None:
            self._frames.feed(self.ours.recv(1 << 20))
        message = decode_from_worker([bytes(part) for part in unpack(frame)])
        assert isinstance(message, kind), message
        return message

    def run(self, wave: RunWave) -> WaveDone:
        self.tell(wave)
        return self.hear(WaveDone)

    def failures_with(self, *numbers: int) -> list[str]:
        """Of a forward of so many sequences, with these adapters."""
        driver = Driver(self.run, "model")
        embed, forward = driver.forward_batch([Extend(Keys(), [7, 8]) for _ in numbers])
        forward = msgspec.structs.replace(forward, adapters=ints(numbers))
        done = self.run(RunWave(1, "model", (embed, forward)))
        return [failure.message for failure in done.failures]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Worker:
    folder = make_checkpoint(tmp_path_factory.mktemp("model"))
    return Worker(WorkerConfig(folder, "model", dtype="float32", pages=64, host_pages=8, embeds=1024, max_adapters=2))


@pytest.fixture
def scene(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    theirs, ours = socket.socketpair()
    may_read, begun = threading.Event(), threading.Event()
    read = read_adapter

    def slow(*arguments: object) -> object:
        begun.set()
        assert may_read.wait(HANG_SECONDS)
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(loaded_adapters, "read_adapter", slow)
    transport = LocalTransport(f"fd:{theirs.detach()}")
    loop = threading.Thread(target=serve, args=(transport, worker), daemon=True)
    loop.start()
    made = Scene(worker, ours, may_read, begun)
    yield made
    may_read.set()
    made.tell(Shutdown())
    loop.join(HANG_SECONDS)
    assert not loop.is_alive()
    transport.close()
    ours.close()


def test_waves_go_on_while_an_adapter_is_read(scene: Scene, tmp_path: Path) -> None:
    scene.tell(LoadAdapter(1, str(make_adapter(tmp_path))))
    assert scene.begun.wait(HANG_SECONDS)
    for _ in range(3):
        assert scene.failures_with(-1) == []
    assert len(scene.failures_with(-1, 1)) == 1, "it is not there yet"
    scene.may_read.set()
    loaded = scene.hear(AdapterLoaded)
    assert (loaded.number, loaded.error) == (1, None)
    assert loaded.nbytes > 0
    assert scene.failures_with(-1, 1) == []
    scene.tell(DropAdapter(1))
    assert len(scene.failures_with(1)) == 1


def test_one_that_is_broken_or_too_many_fails_alone(scene: Scene, tmp_path: Path) -> None:
    good = str(make_adapter(tmp_path / "good"))
    broken = str(make_adapter(tmp_path / "broken", r=8))
    folders = {2: good, 3: broken, 4: good, 5: good}
    for number, folder in folders.items():
        scene.tell(LoadAdapter(number, folder))
    scene.may_read.set()
    answers = [scene.hear(AdapterLoaded) for _ in folders]
    assert [answer.number for answer in answers] == list(folders), "in the order in which they began"
    assert [answer.error is None for answer in answers] == [True, False, True, False]
    assert "expected [8, " in str(answers[1].error)
    assert "2 adapters are loaded, the most" in str(answers[3].error)
    assert scene.failures_with(2, -1, 4) == []
    for number in folders:
        scene.tell(DropAdapter(number))
    assert scene.failures_with(-1) == []
    assert scene.worker._served.adapters.nbytes == 0


def test_one_that_is_dropped_while_it_is_read_is_gone(scene: Scene, tmp_path: Path) -> None:
    scene.tell(LoadAdapter(6, str(make_adapter(tmp_path))))
    assert scene.begun.wait(HANG_SECONDS)
    scene.tell(DropAdapter(6))
    assert scene.failures_with(-1, -1) == [], "nobody waits for it"
    scene.may_read.set()
    assert scene.hear(AdapterLoaded).number == 6
    assert len(scene.failures_with(6)) == 1
    assert scene.worker._served.adapters.nbytes == 0


def test_one_whose_files_are_not_read_in_time_holds_up_nobody(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(make_adapter(tmp_path))
    monkeypatch.setattr(loading, "SECONDS", 0.0)
    scene.tell(LoadAdapter(8, folder))
    assert "its files took more than 0 s to read" in str(scene.hear(AdapterLoaded).error)
    monkeypatch.undo()  # files are read at once, but for those that are waited for still
    scene.tell(LoadAdapter(9, folder))
    assert scene.hear(AdapterLoaded).error is None
    assert not scene.may_read.is_set()
    scene.tell(DropAdapter(9))


def test_one_that_is_read_at_the_end_keeps_nobody(scene: Scene, tmp_path: Path) -> None:
    scene.tell(LoadAdapter(7, str(make_adapter(tmp_path))))
    assert scene.begun.wait(HANG_SECONDS)
