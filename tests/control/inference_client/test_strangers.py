"""Processes that connect to the socket of a worker without being it: they get nothing and disturb nobody."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils import z85

from pie_control.errors import WorkerUnavailable
from pie_control.inference_client.client import WorkerClient
from pie_control.inference_client.process import worker_environment
from pie_inference.config import parse_options
from pie_inference.protocol import PROTOCOL_VERSION, Ready, RunWave, encode
from pie_inference.protocol.secret import SECRET_VARIABLE, control_key
from pie_inference.testing.checkpoints import make_checkpoint
from tests.helpers.clients import ask, loss_of, run
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.tree import ROOT

SECRET, OTHER_SECRET = "0123456789abcdef" * 4, "fedcba9876543210" * 4
WAVES = 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture
def endpoint() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def worker_options(checkpoint: Path) -> list[str]:
    return ["--model", str(checkpoint), "--name", "model", "--pages", "16", "--embeds", "64", "--threads", "1"]


@contextmanager
def worker(checkpoint: Path, endpoint: str, secret: str | None = SECRET) -> Iterator[subprocess.Popen[str]]:
    """A worker that is started elsewhere."""
    command = [sys.executable, "-m", "pie_inference.serving", "--endpoint", endpoint, *worker_options(checkpoint)]
    environment = worker_environment(os.environ, secret)
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def stranger(endpoint: str, secret: str | None = None) -> Iterator[zmq.Socket[bytes]]:
    """A DEALER as a worker's; with a secret it uses CURVE."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.PROBE_ROUTER, 1)
        if secret is not None:
            public, private = zmq.curve_keypair()
            dealer.setsockopt(zmq.CURVE_SERVERKEY, zmq.curve_public(z85.encode(control_key(secret))))
            dealer.setsockopt(zmq.CURVE_PUBLICKEY, public)
            dealer.setsockopt(zmq.CURVE_SECRETKEY, private)
        dealer.connect(endpoint)
        yield dealer


@asynccontextmanager
async def serving(checkpoint: Path, endpoint: str) -> AsyncIterator[tuple[WorkerClient, asyncio.Future[str]]]:
    client = WorkerClient(endpoint=endpoint, secret=SECRET, start_seconds=HANG_SECONDS)
    with worker(checkpoint, endpoint) as process:
        assert (await client.start()).pid == process.pid
        try:
            yield client, loss_of(client)
        finally:
            await client.close()
            assert await asyncio.to_thread(process.wait, HANG_SECONDS) == 0


async def all_waves_reach_the_worker(client: WorkerClient) -> None:
    answers = await ask(client, *(RunWave(number, "model", ()) for number in range(WAVES)))
    assert [answer.wave for answer in answers] == list(range(WAVES))


async def until(told: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not told():
            await asyncio.sleep(0.01)


def forged() -> list[bytes]:
    return encode(Ready(PROTOCOL_VERSION, 1, ()))


@pytest.mark.parametrize("secret", [None, OTHER_SECRET])
def test_who_does_not_know_the_secret_gets_no_wave(
    secret: str | None, checkpoint: Path, endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(checkpoint, endpoint) as (client, lost):
            with stranger(endpoint, secret) as dealer:
                dealer.send_multipart(forged())
                await until(lambda: SECRET_VARIABLE in caplog.text)
                await all_waves_reach_the_worker(client)
                assert dealer.poll(0) == 0
            await all_waves_reach_the_worker(client)
            assert not lost.done()

    with caplog.at_level(logging.WARNING):
        run(test)
    told = [record.getMessage() for record in caplog.records if SECRET_VARIABLE in record.getMessage()]
    assert told == [f"a process that does not know {SECRET_VARIABLE} has tried to connect to {endpoint}"], "once"


def test_a_stranger_that_comes_first_is_not_taken_for_the_worker(checkpoint: Path, endpoint: str) -> None:
    async def test() -> None:
        with stranger(endpoint) as plain, stranger(endpoint, OTHER_SECRET) as wrong:
            for dealer in (plain, wrong):
                dealer.send_multipart(forged())
            async with serving(checkpoint, endpoint) as (client, _):
                await all_waves_reach_the_worker(client)
            assert plain.poll(0) == wrong.poll(0) == 0

    run(test)


def test_connections_that_say_nothing_or_nonsense_are_no_news(checkpoint: Path, endpoint: str) -> None:
    async def test() -> None:
        async with serving(checkpoint, endpoint) as (client, lost):
            for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f" + bytes(1000)):
                with socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2]))) as raw:
                    raw.sendall(said)
                await all_waves_reach_the_worker(client)
            assert not lost.done()

    run(test)


def test_a_second_worker_is_refused_and_shares_no_waves(
    checkpoint: Path, endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with serving(checkpoint, endpoint) as (client, lost):
            with stranger(endpoint, SECRET) as dealer, worker(checkpoint, endpoint) as second:
                dealer.send_multipart(forged())
                await all_waves_reach_the_worker(client)
                _, said = await asyncio.to_thread(second.communicate, None, HANG_SECONDS)
                assert second.returncode == 1
                assert "another worker is connected to the control process already" in said
                await all_waves_reach_the_worker(client)
                refusals = []
                while dealer.poll(0):
                    refusals.append(dealer.recv_multipart()[0])
                assert len(refusals) == 1
                assert b"another worker" in refusals[0]
            await all_waves_reach_the_worker(client)
            assert not lost.done()

    with caplog.at_level(logging.WARNING):
        run(test)
    assert caplog.text.count("another process than the worker has connected") == 2


@pytest.mark.parametrize("secret", [OTHER_SECRET, None, "short"])
def test_a_worker_without_the_secret_says_so_and_ends(secret: str | None, checkpoint: Path, endpoint: str) -> None:
    async def test() -> None:
        client = WorkerClient(endpoint=endpoint, secret=SECRET, start_seconds=HANG_SECONDS)
        starting = asyncio.create_task(client.start())
        with worker(checkpoint, endpoint, secret) as process:
            _, said = await asyncio.to_thread(process.communicate, None, HANG_SECONDS)
            assert process.returncode == 1
            assert SECRET_VARIABLE in said
        assert not starting.done()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    run(test)


def test_the_own_worker_has_no_address_and_no_secret(checkpoint: Path) -> None:
    async def test() -> None:
        client = WorkerClient(worker_options(checkpoint), start_seconds=HANG_SECONDS)
        ready = await client.start()
        line = Path(f"/proc/{ready.pid}/cmdline").read_text().split("\0")
        address = line[line.index("--endpoint") + 1]
        assert address.startswith("fd:")
        assert SECRET_VARIABLE not in Path(f"/proc/{ready.pid}/environ").read_text()
        await all_waves_reach_the_worker(client)
        await client.close()

    run(test)


def test_an_endpoint_needs_a_secret_that_nobody_guesses(endpoint: str) -> None:
    options: list[dict[str, Any]] = [{"endpoint": endpoint}, {"arguments": ["--x"], "secret": SECRET}]
    for wrong in options:
        with pytest.raises(ValueError, match="needs a secret"):
            WorkerClient(**wrong)

    async def test() -> None:
        with pytest.raises(WorkerUnavailable, match=r"has 5 characters; 32 random ones are the least: openssl rand"):
            await WorkerClient(endpoint=endpoint, secret="short").start()

    run(test)


def test_the_worker_takes_the_secret_out_of_its_environment(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    options = parse_options(["--endpoint", "ipc://x", *worker_options(checkpoint)])
    assert options.secret == SECRET
    assert SECRET_VARIABLE not in os.environ


def test_a_worker_gets_only_the_secret_that_is_meant_for_it() -> None:
    base = {SECRET_VARIABLE: OTHER_SECRET, "PATH": "/bin"}
    assert SECRET_VARIABLE not in worker_environment(base)
    assert worker_environment(base, SECRET)[SECRET_VARIABLE] == SECRET
    assert worker_environment(base)["PATH"] == "/bin"
