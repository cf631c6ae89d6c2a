"""Waves are launched while others run, finish in order, and fail alone. No GPU: a marker stands for its progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pie_inference.config import WorkerConfig
from pie_inference.protocol import (
    PROTOCOL_VERSION,
    FromWorker,
    GetNextDistResult,
    Hello,
    Ready,
    RunWave,
    SampleResult,
    Shutdown,
    ToWorker,
    WaveDone,
)
from pie_inference.serving import worker as worker_module
from pie_inference.serving.loop import serve
from pie_inference.serving.sessions import Transport
from pie_inference.serving.worker import Worker
from testing.checkpoints import make_checkpoint
from testing.worker_batches import (
    Driver,
    Extend,
    Keys,
    copy_batch,
    dist_batch,
    embed_batch,
    ints,
    sample_batch,
)


class Device:
    """A GPU that comes past a mark after `polls` queries, or when it is waited for."""

    def __init__(self, log: list[str], polls: int = 3, error: str | None = None) -> None:
        self.log, self.polls, self.error, self.marks = log, polls, error, 0

    def mark(self, _: object) -> Mark:
        self.marks += 1
        self.log.append(f"launched {self.marks}")
        return Mark(self, self.marks, self.polls)


class Mark:
    def __init__(self, device: Device, number: int, polls: int) -> None:
        self._device, self._number, self._polls = device, number, polls

    def query(self) -> bool:
        self._polls -= 1
        return self._polls < 0

    def synchronize(self) -> None:
        self._device.log.append(f"waited {self._number}")
        if self._device.error is not None:
            raise RuntimeError(self._device.error)


class Script(Transport):
    """A transport that plays messages: a None is a moment in which nothing has come. Without it a message is there."""

    def __init__(self, log: list[str], *messages: ToWorker | None) -> None:
        self.log, self.sent = log, list[FromWorker]()
        self._messages = deque(messages)

    def receive(self) -> ToWorker:
        while (message := self._messages.popleft()) is None:
            pass
        return message

    def receive_nowait(self) -> ToWorker | None:
        return self._messages.popleft()

    def send(self, message: FromWorker) -> None:
        self.log.append(f"sent {message.wave}" if isinstance(message, WaveDone) else "sent")
        self.sent.append(message)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Worker:
    folder = make_checkpoint(tmp_path_factory.mktemp("model"))
    return Worker(WorkerConfig(folder, "model", dtype="float32", pages=64, embeds=1024))


@pytest.fixture
def on_device(loaded: Worker, monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], Worker]:
    def make(device: Device) -> Worker:
        monkeypatch.setattr(worker_module, "mark_stream", device.mark)
        return loaded

    return make


def empty(wave: int) -> RunWave:
    return RunWave(wave, "model", ())


def test_the_next_wave_is_launched_while_one_runs(on_device: Callable[[Device], Worker]) -> None:
    log: list[str] = []
    script = Script(log, empty(1), empty(2), empty(3), Shutdown())
    serve(script, on_device(Device(log, polls=100)))
    assert log == [
        *("launched 1", "launched 2", "waited 1", "sent 1"),
        *("launched 3", "waited 2", "sent 2", "waited 3", "sent 3"),
    ]


def test_a_wave_that_is_done_is_answered_without_another_message(on_device: Callable[[Device], Worker]) -> None:
    log: list[str] = []
    script = Script(log, empty(1), None, None, None, empty(2), Shutdown())
    serve(script, on_device(Device(log, polls=2)))
    assert log[:4] == ["launched 1", "waited 1", "sent 1", "launched 2"]


def test_on_a_cpu_each_wave_is_answered_at_once(loaded: Worker) -> None:
    log: list[str] = []
    script = Script(log, Hello(PROTOCOL_VERSION), empty(1), empty(2), Shutdown())
    serve(script, loaded)
    assert log == ["sent", "sent 1", "sent 2"]
    assert isinstance(script.sent[0], Ready)


def test_a_failure_is_answered_with_its_wave(on_device: Callable[[Device], Worker]) -> None:
    log: list[str] = []
    bad = RunWave(1, "model", (copy_batch(ints([-1]), ints([0])), dist_batch(ints([0]), 2)))
    good = RunWave(2, "model", (dist_batch(ints([0]), 2),))
    script = Script(log, bad, good, Shutdown())
    serve(script, on_device(Device(log, polls=100)))
    first, second = script.sent
    assert isinstance(first, WaveDone)
    assert isinstance(second, WaveDone)
    assert [(failure.batch, failure.command) for failure in first.failures] == [(0, 0)]
    assert [type(result) for result in first.results] == [type(None), GetNextDistResult]
    assert second.failures == ()


def test_an_error_of_the_device_ends_the_worker(on_device: Callable[[Device], Worker]) -> None:
    log: list[str] = []
    worker = on_device(Device(log, error="CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        serve(Script(log, empty(1), empty(2), Shutdown()), worker)


def test_waves_in_flight_hand_tokens_on(on_device: Callable[[Device], Worker]) -> None:
    """The second wave embeds what the first one samples, and is launched before that is read."""
    worker = on_device(Device([]))
    prompt = [10, 20, 30]
    expected = Driver(worker.run, "model").generate(Keys(), prompt, 2)
    driver, keys = Driver(worker.run, "model"), Keys()
    embed, forward = driver.forward_batch([Extend(keys, prompt)])
    first = worker.launch(RunWave(1, "model", (embed, forward, _sample(driver.outputs + 2))))
    embed, forward = driver.forward_batch([Extend(keys, [0])])
    reference = embed_batch(embed.embeds, ints([-41]))
    second = worker.launch(RunWave(2, "model", (reference, forward, _sample(driver.outputs))))
    done = [worker.finish(first), worker.finish(second)]
    results = [wave.results[-1] for wave in done]
    assert [result.tokens[0] for result in results if isinstance(result, SampleResult)] == expected


def _sample(embed: int) -> Any:
    return sample_batch(ints([embed]), token_slots=ints([40]))


def test_seconds_do_not_count_twice(on_device: Callable[[Device], Worker]) -> None:
    worker = on_device(Device([]))
    launched = [worker.launch(empty(wave)) for wave in range(3)]
    done = [worker.finish(each) for each in launched]
    assert all(wave.seconds >= 0 for wave in done)
    assert sum(wave.seconds for wave in done) <= worker._last_finish - launched[0].started + 1e-6


def test_results_are_arrays_of_their_own(loaded: Worker) -> None:
    driver = Driver(loaded.run, "model")
    [first] = driver.run(_sample(700))
    assert isinstance(first, SampleResult)
    before = first.tokens.copy()
    driver.run(*driver.forward_batch([Extend(Keys(), [1, 2, 3])]), _sample(driver.outputs))
    np.testing.assert_array_equal(first.tokens, before)
