"""Clients: a worker process end to end, the in-process client, and the fake model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pie_control.errors import WorkerUnavailable
from pie_control.inference_client.interface import InferenceClient
from pie_control.inference_client.wave_watch import WaveWatch
from pie_control.inference_client.zeromq import WAVE_SECONDS, ZeroMQClient
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.protocol import (
    PROTOCOL_VERSION,
    GetLogprobs,
    GetNextDistResult,
    ModelDescription,
    RunWave,
    SampleResult,
    SwapIn,
    SwapOut,
    WaveDone,
)
from pie_inference.testing.checkpoints import make_checkpoint
from pie_inference.testing.worker_batches import (
    Driver,
    Extend,
    Keys,
    copy_batch,
    dist_batch,
    embed_batch,
    indptr,
    ints,
    sample_batch,
)
from tests.helpers.tree import ROOT

DEADLINE = 30.0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def launching(checkpoint: Path, *more: str, wave_seconds: float = WAVE_SECONDS) -> ZeroMQClient:
    options = ["--model", str(checkpoint), "--name", "model", "--pages", "64", "--embeds", "2048", "--threads", "1"]
    return ZeroMQClient([*options, *more], start_seconds=DEADLINE, wave_seconds=wave_seconds)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 2 * DEADLINE))


def refuse(wave: RunWave) -> WaveDone:
    raise AssertionError("only builds batches")


async def ask(client: InferenceClient, *waves: RunWave) -> list[WaveDone]:
    """Sends all waves at once and waits for their answers."""
    answers: asyncio.Queue[WaveDone] = asyncio.Queue()
    client.on_wave_done = answers.put_nowait
    for wave in waves:
        client.send(wave)
    return [await asyncio.wait_for(answers.get(), DEADLINE) for _ in waves]


def loss_of(client: InferenceClient) -> asyncio.Future[str]:
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    client.on_lost = lost.set_result
    return lost


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.02)


def test_a_worker_process_serves_and_leaves_nothing_behind(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def test() -> None:
        client = launching(checkpoint)
        ready = await client.start()
        assert (ready.protocol, ready.models[0].name) == (PROTOCOL_VERSION, "model")
        assert ready.models[0].tokenizer == (checkpoint / "tokenizer.json").read_bytes()
        assert ready.models[0].tokenizer_config["eos_token"] == "<|end|>"
        assert list(tmp_path.iterdir())
        embed, forward = Driver(refuse, "model").forward_batch([Extend(Keys(), [1, 2, 3])])
        wave = RunWave(1, "model", (embed, forward, sample_batch(ints([514]))))
        answers = await ask(client, wave, RunWave(2, "model", ()))
        assert [answer.wave for answer in answers] == [1, 2]
        assert isinstance(answers[0].results[2], SampleResult)
        await client.close()
        await client.close()
        assert not alive(ready.pid)
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
        await asyncio.wait_for(finished.wait(), DEADLINE)
        assert seen == list(range(201))
        await client.close()

    run(test)


def test_no_worker_within_the_time_to_start(tmp_path: Path) -> None:
    async def test() -> None:
        client = ZeroMQClient(endpoint=f"ipc://{tmp_path / 'socket'}", start_seconds=0.05)
        with pytest.raises(WorkerUnavailable, match=r"no worker was ready within 0\.05 s"):
            await client.start()
        nowhere = ZeroMQClient(endpoint="ipc:///nowhere/at/all")
        with pytest.raises(WorkerUnavailable, match="could not be started"):
            await nowhere.start()

    run(test)


def test_a_killed_worker_is_noticed_and_restarted(checkpoint: Path) -> None:
    async def test() -> None:
        client = launching(checkpoint)
        first = await client.start()
        lost = loss_of(client)
        os.kill(first.pid, signal.SIGKILL)
        assert "killed by signal 9" in await asyncio.wait_for(lost, DEADLINE)
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
        assert "did not answer for 1 s" in await asyncio.wait_for(lost, DEADLINE)
        second = await client.restart()
        assert not alive(first.pid)
        assert (await ask(client, RunWave(3, "model", ())))[0].wave == 3
        assert second.pid != first.pid
        await client.close()

    run(test)


def test_waves_that_are_answered_in_time_are_no_silence() -> None:
    async def test() -> None:
        silences: list[str] = []
        watch = WaveWatch(0.5, lambda: silences.append("silence"))
        watch.sent()
        for _ in range(8):
            await asyncio.sleep(0.1)
            watch.sent()
            watch.answered()
        assert not silences
        while not silences:
            await asyncio.sleep(0.01)
        never = WaveWatch(0.0, lambda: silences.append("never"))
        never.sent()
        stopped = WaveWatch(0.01, lambda: silences.append("stopped"))
        stopped.sent()
        stopped.stop()
        await asyncio.sleep(0.05)
        assert silences == ["silence"]

    run(test)


def test_a_worker_ignores_interrupts(checkpoint: Path) -> None:
    async def test() -> None:
        client = launching(checkpoint)
        ready = await client.start()
        os.kill(ready.pid, signal.SIGINT)
        assert (await ask(client, RunWave(1, "model", ())))[0].wave == 1
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


PARENT = """
import asyncio, sys
from pie_control.inference_client.zeromq import ZeroMQClient

async def main():
    ready = await ZeroMQClient(sys.argv[1:]).start()
    print(ready.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_worker_dies_with_its_parent(checkpoint: Path) -> None:
    command = [sys.executable, "-c", PARENT, "--model", str(checkpoint), "--name", "model", "--pages", "16"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    wait_for_end(worker)


def test_a_worker_that_connects_by_itself(checkpoint: Path, tmp_path: Path) -> None:
    """As on another machine: the client binds, the worker comes, goes, and comes again."""
    endpoint = f"ipc://{tmp_path / 'socket'}"
    options = ["--endpoint", endpoint, "--model", str(checkpoint), "--name", "model", "--pages", "16"]

    def start_worker() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "pie_inference.serving", *options], cwd=ROOT)

    async def test() -> None:
        client = ZeroMQClient(endpoint=endpoint, start_seconds=DEADLINE)
        worker = start_worker()
        assert (await client.start()).pid == worker.pid
        lost = loss_of(client)
        worker.kill()
        worker.wait()
        assert "connection" in await asyncio.wait_for(lost, DEADLINE)
        worker = start_worker()
        assert (await client.restart()).pid == worker.pid
        await client.close()
        assert worker.wait(DEADLINE) == 0

    run(test)


@pytest.mark.parametrize("inline", [False, True])
def test_in_process_waves_are_answered_in_order(inline: bool) -> None:
    async def test() -> None:
        client = InProcessClient(FakeModel(), inline=inline)
        ready = await client.start()
        assert ready.models == FakeModel().describe() or ready.models[0].name == "fake"
        answers = await ask(client, *(RunWave(n, "fake", ()) for n in range(20)))
        assert [answer.wave for answer in answers] == list(range(20))
        await client.restart()
        assert (await ask(client, RunWave(7, "fake", ())))[0].wave == 7
        await client.close()
        with pytest.raises(WorkerUnavailable):
            client.send(RunWave(8, "fake", ()))

    run(test)


class Broken:
    def describe(self) -> tuple[ModelDescription, ...]:
        return ()

    def run(self, wave: RunWave) -> WaveDone:
        raise OSError("out of luck")


@pytest.mark.parametrize("inline", [False, True])
def test_in_process_loss(inline: bool) -> None:
    async def test() -> None:
        client = InProcessClient(Broken(), inline=inline)
        await client.start()
        lost = loss_of(client)
        client.send(RunWave(1, "fake", ()))
        assert "out of luck" in await asyncio.wait_for(lost, DEADLINE)
        await client.close()

    run(test)


def fake_driver() -> Driver:
    return Driver(FakeModel().run, "fake")


def test_the_fake_model_depends_on_its_whole_context_in_order() -> None:
    prompt = list(b"the quick brown fox")
    expected = fake_driver().generate(Keys(), prompt, 30)
    driver, keys = fake_driver(), Keys()
    driver.run(*driver.forward_batch([Extend(keys, prompt[:7])]))
    assert driver.generate(keys, prompt[7:], 30) == expected
    for changed in (prompt[::-1], prompt[1:], [*prompt[:3], 0, *prompt[4:]]):
        assert fake_driver().generate(Keys(), changed, 30) != expected


def test_the_fake_model_heeds_slots_and_masks() -> None:
    driver, keys = fake_driver(), Keys()
    driver.run(*driver.forward_batch([Extend(keys, list(range(20)))]))
    dropped, swapped = keys.fork(), keys.fork()
    del dropped.slots[5]
    swapped.slots[3], swapped.slots[4] = swapped.slots[4], swapped.slots[3]
    copied = keys.fork()
    copied.slots = driver.add_slots(Keys(), 20)
    driver.run(copy_batch(ints(keys.slots), ints(copied.slots)))
    mask = np.ones((1, 21), bool)
    mask[0, 5] = False

    def digest(context: Keys, mask: np.ndarray | None = None) -> bytes:
        row = Extend(context.fork(), [99], mask)
        return driver.logprobs(row, vocab_size=259)[0].tobytes()

    assert digest(keys) == digest(copied) != digest(swapped)
    assert digest(keys, mask) == digest(dropped) != digest(keys)


def test_the_fake_model_swaps_pages() -> None:
    driver, keys = fake_driver(), Keys()
    driver.run(*driver.forward_batch([Extend(keys, list(range(20)))]))
    away = keys.fork()
    away.slots = [slot + 100 * 16 for slot in keys.slots]
    first, second = sorted({slot // 16 for slot in keys.slots})
    driver.run(SwapOut(ints([first, second]), ints([9, 3])))
    driver.run(SwapIn(ints([3, 9]), ints([second + 100, first + 100])))
    stayed, came_back = (driver.logprobs(Extend(each, [99]), vocab_size=259)[0] for each in (keys, away))
    assert stayed.tobytes() == came_back.tobytes()


def test_the_fake_model_samples_within_bounds() -> None:
    driver = fake_driver()
    driver.run(*driver.forward_batch([Extend(Keys(), [1, 2, 3])]))
    embeds = ints([driver.outputs + 2] * 3)
    dist = driver.ask(GetNextDistResult, dist_batch(embeds[:1], 5))
    allowed = np.packbits(np.arange(259) == 65, bitorder="little")[None]
    result = driver.ask(
        SampleResult,
        sample_batch(
            embeds,
            temperature=np.array([0, 1, 0], np.float32),
            top_k=ints([0, 5, 0]),
            uniform=np.array([0, 0.999, 0]),
            allowed_rows=ints([-1, -1, 0]),
            allowed=allowed,
        ),
    )
    assert result.tokens.tolist() == [dist.tokens[0], dist.tokens[4], 65]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (embed_batch(ints([1, 1]), ints([5, 5])), "written twice"),
        (embed_batch(ints([1]), ints([999])), "outside the vocabulary"),
        (embed_batch(ints([1]), ints([-3])), "token slot 2 is read before"),
        (embed_batch(ints([99999]), ints([1])), "embed numbers are"),
        (copy_batch(ints([1]), ints([2])), "KV slot 1 is read before"),
        (SwapOut(ints([1]), ints([2])), "a page without a filled KV slot"),
        (SwapIn(ints([1]), ints([2])), "a page without a filled host slot"),
        (GetLogprobs(ints([7]), indptr([1]), ints([1])), "embed 7 is read before"),
    ],
)
def test_the_fake_model_refuses_what_the_protocol_forbids(batch: Any, message: str) -> None:
    done = FakeModel().run(RunWave(1, "fake", (batch, embed_batch(ints([1]), ints([1])))))
    assert done.results == (None, None)
    assert {failure.batch for failure in done.failures} == {0}
    assert message in done.failures[0].message
