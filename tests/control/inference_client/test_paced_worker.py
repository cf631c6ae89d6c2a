"""A worker process that takes the time of a GPU and no processor, through the client that serves use."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pie_control.config import ModelPath, build_config
from pie_control.errors import WorkerUnavailable
from pie_control.inference_client.client import WorkerClient
from pie_control.inference_client.local import LocalWorker
from pie_control.inference_client.process import PACED_WORKER
from pie_control.runtime import start_worker
from pie_inference.protocol import PROTOCOL_VERSION, RunWave, SampleResult, WaveDone
from testing.worker_batches import Driver, Extend, Keys, ints, sample_batch
from tests.helpers.clients import ask, loss_of, run
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.processes import until_gone
from tests.helpers.tree import ROOT


def paced(pace: str, *more: str) -> WorkerClient:
    arguments = ["--name", "model", "--pace", pace, *more]
    return WorkerClient(LocalWorker(arguments, PACED_WORKER, HANG_SECONDS))


def waves(count: int) -> list[RunWave]:
    return [RunWave(number, "model", ()) for number in range(count)]


def refuse(wave: RunWave) -> WaveDone:
    raise AssertionError("only builds batches")


def processor_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_waves_queue_up_as_on_a_gpu() -> None:
    """Sleeps are never shorter than asked for: the least time is certain on any machine."""

    async def test() -> None:
        client = paced("20ms")
        ready = await client.start()
        assert (ready.protocol, ready.models[0].device) == (PROTOCOL_VERSION, "paced")
        start, used = time.perf_counter(), processor_seconds(ready.pid)
        answers = await ask(client, *waves(20))
        elapsed = time.perf_counter() - start
        assert [answer.wave for answer in answers] == list(range(20))
        assert [answer.seconds for answer in answers] == [0.02] * 20
        assert elapsed >= 20 * 0.02
        assert processor_seconds(ready.pid) - used < elapsed / 2
        await client.close()

    run(test)


def test_a_paced_worker_runs_commands() -> None:
    async def test() -> None:
        client = paced("0ms+1us", "--embeds", "2048")
        ready = await client.start()
        assert (ready.models[0].num_embeds, ready.models[0].max_batch_rows) == (2048, 1024)
        embed, forward = Driver(refuse, "model").forward_batch([Extend(Keys(), [1, 2, 3])])
        (done,) = await ask(client, RunWave(1, "model", (embed, forward, sample_batch(ints([514])))))
        assert done.seconds == pytest.approx(3e-6)
        assert isinstance(done.results[2], SampleResult)
        await client.close()

    run(test)


def test_what_shortens_a_mapped_file_is_told() -> None:
    async def test() -> None:
        client = paced("1ms")
        first = await client.start()
        lost = loss_of(client)
        os.kill(first.pid, signal.SIGBUS)
        told = await asyncio.wait_for(lost, HANG_SECONDS)
        assert f"killed by signal {int(signal.SIGBUS)} (SIGBUS: a file that it had mapped became shorter" in told
        await client.close()

    run(test)


def test_options_that_make_no_sense_are_told() -> None:
    async def test() -> None:
        with pytest.raises(WorkerUnavailable, match="a pace is the time of a wave"):
            await paced("15").start()
        with pytest.raises(WorkerUnavailable, match="--page-size must be 8 to 32, not 7"):
            await paced("15ms", "--page-size", "7").start()

    run(test)


PARENT = """
import asyncio, sys
from pie_control.inference_client.client import WorkerClient
from pie_control.inference_client.local import LocalWorker

async def main():
    ready = await WorkerClient(LocalWorker(sys.argv[2:], sys.argv[1])).start()
    print(ready.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_paced_worker_dies_with_its_parent() -> None:
    command = [sys.executable, "-c", PARENT, PACED_WORKER, "--name", "model", "--pace", "1ms"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    until_gone(worker)


def test_a_server_starts_the_worker_that_its_setting_names() -> None:
    async def test() -> None:
        config = build_config({"worker": "paced:1ms+2us", "max_batch_rows": 7}).resolved()
        client = start_worker(config, ModelPath("chosen", "/nowhere"))
        description = (await client.start()).models[0]
        assert (description.name, description.architecture) == ("chosen", "PacedModel")
        assert (description.max_batch_rows, description.max_batch_tokens) == (7, 4096)
        (done,) = await ask(client, RunWave(1, "chosen", ()))
        assert done.seconds == 0.001
        await client.close()

    run(test)
