"""Clients of worker processes, end to end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path

import pytest

from pie_control.errors import WorkerUnavailable
from pie_control.inference_client.client import WAVE_SECONDS, WorkerClient
from pie_control.inference_client.connection import Connection, OnFrames, OnLost
from pie_control.inference_client.local import LocalWorker
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import PROTOCOL_VERSION, Ready, RunWave, SampleResult, WaveDone, encode
from testing.checkpoints import make_checkpoint
from testing.worker_batches import Driver, Extend, Keys, ints, sample_batch
from tests.helpers.clients import ask, loss_of, run
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.processes import runs


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def launching(checkpoint: Path, *more: str, wave_seconds: float = WAVE_SECONDS) -> WorkerClient:
    options = ["--model", str(checkpoint), "--name", "model", "--pages", "64", "--embeds", "2048", "--threads", "1"]
    return WorkerClient(LocalWorker([*options, *more], start_seconds=HANG_SECONDS), wave_seconds)


def refuse(wave: RunWave) -> WaveDone:
    raise AssertionError("only builds batches")


@pytest.mark.usefixtures("started_as_usual")
def test_a_worker_process_serves_in_spite_of_an_interrupt_and_leaves_nothing_behind(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def test() -> None:
        client = launching(checkpoint)
        ready = await client.start()
        assert (ready.protocol, ready.models[0].name) == (PROTOCOL_VERSION, "model")
        assert ready.models[0].tokenizer == (checkpoint / "tokenizer.json").read_bytes()
        assert ready.models[0].tokenizer_config["eos_token"] == "<|end|>"
        embed, forward = Driver(refuse, "model").forward_batch([Extend(Keys(), [1, 2, 3])])
        wave = RunWave(1, "model", (embed, forward, sample_batch(ints([514]))))
        os.kill(ready.pid, signal.SIGINT)
        answers = await ask(client, wave, RunWave(2, "model", ()))
        assert [answer.wave for answer in answers] == [1, 2]
        assert isinstance(answers[0].results[2], SampleResult)
        await client.close()
        await client.close()
        assert not runs(ready.pid)
        assert not list(tmp_path.iterdir())
        with pytest.raises(WorkerUnavailable):
            client.send(wave)

    run(test)


def test_sending_within_an_answer_does_not_call_back_from_within(checkpoint: Path) -> None:
    async def test() -> None:
        client = launching(checkpoint)
        await client.start()
        finished = asyncio.Event()
        running: list[int] = []
        seen: list[int] = []

        def on_wave_done(done: WaveDone) -> None:
            assert not running
            running.append(done.wave)
            seen.append(done.wave)
            if done.wave <= 198:
                client.send(RunWave(done.wave + 2, "model", ()))
            if done.wave == 200:
                finished.set()
            running.clear()

        client.on_wave_done = on_wave_done
        client.send(RunWave(0, "model", ()))
        client.send(RunWave(1, "model", ()))
        await asyncio.wait_for(finished.wait(), HANG_SECONDS)
        assert seen == list(range(201))
        await client.close()

    run(test)


def test_no_worker_within_the_time_to_start(checkpoint: Path) -> None:
    async def test() -> None:
        client = WorkerClient(LocalWorker(["--model", str(checkpoint), "--name", "model"], start_seconds=0.001))
        with pytest.raises(WorkerUnavailable, match=r"no worker was ready within 0\.001 s"):
            await client.start()

    run(test)


def test_a_killed_worker_is_noticed_and_restarted(checkpoint: Path) -> None:
    async def test() -> None:
        client = launching(checkpoint)
        first = await client.start()
        lost = loss_of(client)
        os.kill(first.pid, signal.SIGKILL)
        assert "killed by signal 9" in await asyncio.wait_for(lost, HANG_SECONDS)
        with pytest.raises(WorkerUnavailable):
            client.send(RunWave(1, "model", ()))
        second = await client.restart()
        assert second.pid != first.pid
        assert (await ask(client, RunWave(2, "model", ())))[0].wave == 2
        await client.close()

    run(test)


def test_a_worker_that_hangs_is_noticed_and_replaced(checkpoint: Path) -> None:
    async def test() -> None:
        client = launching(checkpoint, wave_seconds=1.0)
        first = await client.start()
        await ask(client, RunWave(1, "model", ()))
        await asyncio.sleep(1.2)  # a worker with nothing to do does not hang
        lost = loss_of(client)
        os.kill(first.pid, signal.SIGSTOP)
        client.send(RunWave(2, "model", ()))
        assert "did not answer for 1 s" in await asyncio.wait_for(lost, HANG_SECONDS)
        second = await client.restart()
        assert not runs(first.pid)
        assert (await ask(client, RunWave(3, "model", ())))[0].wave == 3
        assert second.pid != first.pid
        await client.close()

    run(test)


def test_the_workers_own_message_says_why_it_did_not_start(tmp_path: Path) -> None:
    async def test() -> None:
        client = launching(tmp_path / "absent")
        with pytest.raises(WorkerUnavailable, match=r"absent: there is no such folder"):
            await client.start()
        with pytest.raises(WorkerUnavailable, match=r"--page-size must be 8 to 32, not 7"):
            await launching(tmp_path, "--page-size", "7").start()

    run(test)


class Silence:
    """A connection to a worker that says nothing."""

    def send(self, frames: object) -> None:
        """Nobody takes it."""

    def close(self) -> None:
        """Nothing was opened."""


class Late(LocalWorker):
    """Its worker fails while it is being ended."""

    def open(self, on_frames: OnFrames, on_lost: OnLost) -> Connection:
        self._on_lost = on_lost
        return Silence()

    @property
    def patience(self) -> float:
        return 0.0

    async def leave(self, seconds: float) -> None:
        self._on_lost("too late")


class Fleeting(LocalWorker):
    """Its worker fails as soon as it is ready."""

    def open(self, on_frames: OnFrames, on_lost: OnLost) -> Connection:
        def come_and_go() -> None:
            on_frames(encode(Ready(PROTOCOL_VERSION, 1, FakeModel().describe())))
            on_lost("out of memory")

        asyncio.get_running_loop().call_soon(come_and_go)
        return Silence()

    def why_not(self, ready: Ready) -> None:
        """Nothing is wrong with it."""

    async def leave(self, seconds: float) -> None:
        """It has gone."""


def test_a_worker_that_fails_as_it_becomes_ready_has_not_started() -> None:
    async def start() -> None:
        with pytest.raises(WorkerUnavailable, match="out of memory"):
            await WorkerClient(Fleeting(["--model", "m"])).start()

    asyncio.run(start())


def test_the_last_word_of_a_worker_that_nobody_waits_for_any_more_is_no_exception() -> None:
    reported: list[str] = []

    async def start() -> None:
        with pytest.raises(WorkerUnavailable, match=r"no worker was ready within 0\.01 s"):
            await WorkerClient(Late(["--model", "m"], start_seconds=0.01)).start()

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: reported.append(about["message"]))
        await start()
        gc.collect()  # who forgets an exception is told of then

    asyncio.run(test())
    assert reported == []
