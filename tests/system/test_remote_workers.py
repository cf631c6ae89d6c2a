"""Servers whose workers were started by hand, and listen: they are killed, cut off and started again, and outlive their
servers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pie_control.errors import WorkerUnavailable
from pie_control.server_api import ServerApi
from pie_inference.options.secret import SECRET_VARIABLE
from testing.checkpoints import make_checkpoint
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.remote_workers import (
    SECRET,
    UNCHECKED,
    RemoteWorker,
    free_address,
    remote_worker,
)
from tests.helpers.servers import Listener, launch, run, started
from tests.helpers.tiers import corpus
from tests.helpers.tree import ROOT
from tests.system.test_exports import EXPORT
from tests.system.test_killed_worker import DECODE, serves_anew
from tests.system.test_survival import WAIT

PACED = ("--worker", "paced:1ms", "--model")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


async def told_of_the_loss(listener: Listener) -> None:
    ended = await listener.ended
    assert ended.status == "lost", ended.error
    assert "the connection to the worker at tcp://127.0.0.1:" in (ended.error or "")
    assert "was lost" in (ended.error or "")
    assert "launch again" in (ended.error or "")


async def until_it_serves(server: ServerApi) -> None:
    while server.outages():
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_a_worker_is_killed_and_cut_off_and_serves_again(
    hosts: int, guest_cache: Path, tmp_path: Path, secret: Path
) -> None:
    arguments = ("--model", f"small={make_checkpoint(tmp_path / 'model')}", "--pages", "200", "--max-context", "400")

    async def check(first: RemoteWorker) -> None:
        options = {"worker": [first.address], "secret_file": str(secret), "hosts": hosts}
        async with started(guest_cache, **options) as server, asyncio.timeout(HANG_SECONDS):
            assert [model.name for model in server.models()] == ["small"]
            expected, _ = await run(server, EXPORT)
            _, decoding = await launch(server, DECODE)
            idle, waiting = await launch(server, WAIT)
            await decoding.until_messages(2)
            await waiting.until_messages(1)
            first.process.kill()
            await told_of_the_loss(decoding)
            with remote_worker(*arguments, address=first.address, ready=False) as second:
                await until_it_serves(server)
                assert await serves_anew(server) == expected
                _, decoding = await launch(server, DECODE)
                await decoding.until_messages(2)
                os.kill(second.pid, signal.SIGSTOP)
                await told_of_the_loss(decoding)
                os.kill(second.pid, signal.SIGCONT)
                await until_it_serves(server)
                assert await serves_anew(server) == expected
                idle.send("an inferlet that held nothing at the worker goes on")
                assert (await waiting.ended).status == "finished"
                (replica,) = server.statistics().models["small"]
                assert replica.restarts == 2
                await server.close()
                await asyncio.to_thread(second.until_it_says, "waits for the next one", 2)
                async with started(guest_cache, **options) as other:
                    assert await serves_anew(other) == expected

    with remote_worker(*arguments) as first:
        asyncio.run(check(first))


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_models_come_by_their_names_beside_local_ones(hosts: int, guest_cache: Path, secret: Path) -> None:
    async def check(addresses: list[str]) -> None:
        options = {"worker": [*addresses, "paced:1ms"], "model": ["demo"], "secret_file": str(secret), "hosts": hosts}
        async with started(guest_cache, **options) as server, asyncio.timeout(HANG_SECONDS):
            assert [model.name for model in server.models()] == ["demo", "chat"]
            assert [len(workers) for workers in server.statistics().models.values()] == [2, 2]
            _, one = await launch(server, DECODE)
            _, two = await launch(server, DECODE)
            for listener in (one, two):
                await listener.until_messages(2)
            placed = [worker.scheduler.inferlets for worker in server.statistics().models["demo"]]
            assert placed == [1, 1]

    with (
        remote_worker(*PACED, "chat=demo") as one,
        remote_worker(*PACED, "chat=demo", "--pages", "999") as two,
        remote_worker(*PACED, "demo", "--max-batch-rows", "1024") as three,
    ):
        asyncio.run(check([one.address, two.address, three.address]))


def test_workers_of_one_name_that_are_not_alike_are_told(guest_cache: Path, secret: Path) -> None:
    async def check(*addresses: str) -> None:
        with pytest.raises(WorkerUnavailable, match="two workers of model demo are not alike: page_size differ"):
            async with started(guest_cache, worker=list(addresses), secret_file=str(secret)):
                pass

    with remote_worker(*PACED, "demo") as one, remote_worker(*PACED, "demo", "--page-size", "32") as two:
        asyncio.run(check(one.address, two.address))
        for worker in (one, two):
            worker.until_it_says("waits for the next one")


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    """A `pie serve` that ends by itself."""
    environment = {**os.environ, SECRET_VARIABLE: SECRET}
    command = [sys.executable, "-m", "pie_control.cli", "serve", "--port", "0", *options]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )


def test_the_command_says_why_it_does_not_serve(guest_cache: Path) -> None:
    folder = ("--cache-dir", str(guest_cache))
    address = free_address()
    absent = serve("--worker", address, "--worker-wait", "2", *folder)
    assert absent.returncode == 2
    assert f"waits for the worker at {address}, for 2 s at most (--worker-wait): nobody answers there" in absent.stderr
    assert f"pie: no worker answers at {address}: start one there with `pie worker --listen`" in absent.stderr


def test_too_few_pages_are_told_on_both_sides(guest_cache: Path) -> None:
    folder = ("--cache-dir", str(guest_cache))
    wrong = "model demo: 2 pages do not hold one batch of 4096 tokens"
    local = serve("--worker", "paced:1ms", "--pages", "2", *folder)
    assert (local.returncode, local.stderr.count("Traceback")) == (2, 0)
    assert f"pie: {wrong}" in local.stderr
    with remote_worker("--pace", "1ms", "--name", "demo", "--pages", "2", program=UNCHECKED) as worker:
        remote = serve("--worker", worker.address, *folder)
        assert (remote.returncode, remote.stderr.count("Traceback")) == (2, 0)
        told = f"the worker at {worker.address} cannot be used: {wrong}"
        assert f"pie: {told}" in remote.stderr
        worker.until_it_says(f"does not want this worker: {told}")


def test_the_command_of_a_worker_says_why_it_does_not_serve(tmp_path: Path) -> None:
    with remote_worker("--worker", "paced:1ms", "--pages", "2", ready=False) as worker:
        assert worker.ends() == 1
        assert "model demo: 2 pages do not hold one batch of 4096 tokens; more than 256 pages of 16" in worker.said
        assert "start the worker with more memory or --pages, or with fewer --max-batch-tokens" in worker.said
    (tmp_path / "config.json").write_text("{}")
    with remote_worker("--model", str(tmp_path), ready=False) as worker:
        assert worker.ends() == 1
        assert "config.json: architectures must be a list of names, not None" in worker.said


@pytest.mark.parametrize("number", corpus([signal.SIGINT, signal.SIGTERM], kind=lambda _: "a signal"))
def test_a_signal_ends_a_worker_that_was_started_by_hand(number: signal.Signals) -> None:
    with remote_worker() as worker:
        worker.process.send_signal(number)
        assert worker.ends() == -number
