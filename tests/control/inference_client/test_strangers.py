"""Processes that connect to the socket of a worker without being its server: they get nothing and disturb nobody."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from pie_control.errors import WorkerUnavailable
from pie_control.inference_client.client import WorkerClient
from pie_control.inference_client.local import LocalWorker
from pie_control.inference_client.process import PACED_WORKER, worker_environment
from pie_control.inference_client.remote import RemoteWorker
from pie_inference.config import parse_options
from pie_inference.options.secret import SECRET_VARIABLE, worker_key
from pie_inference.protocol import PROTOCOL_VERSION, Hello, RunWave, decode_from_worker, encode
from pie_inference.serving.zeromq import STRANGER_SECONDS
from tests.helpers.clients import ask, loss_of, run
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.remote_workers import OTHER_SECRET, SECRET, remote_worker

WAVES = 20


@contextmanager
def stranger(endpoint: str, secret: str | None = None) -> Iterator[zmq.Socket[bytes]]:
    """A DEALER as a server's; with a secret it uses CURVE."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        if secret is not None:
            public, private = zmq.curve_keypair()
            dealer.setsockopt(zmq.CURVE_SERVERKEY, zmq.curve_public(z85.encode(worker_key(secret))))
            dealer.setsockopt(zmq.CURVE_PUBLICKEY, public)
            dealer.setsockopt(zmq.CURVE_SECRETKEY, private)
        dealer.connect(endpoint)
        yield dealer


def client_of(address: str, secret: str | None = SECRET) -> WorkerClient:
    return WorkerClient(RemoteWorker(address, secret, HANG_SECONDS))


async def all_waves_reach_the_worker(client: WorkerClient) -> None:
    answers = await ask(client, *(RunWave(number, "demo", ()) for number in range(WAVES)))
    assert [answer.wave for answer in answers] == list(range(WAVES))


@pytest.mark.parametrize("secret", [None, OTHER_SECRET])
def test_who_does_not_know_the_secret_gets_nothing(secret: str | None) -> None:
    async def test() -> None:
        begun = time.monotonic()
        with remote_worker() as worker, stranger(worker.address, secret) as early:
            early.send_multipart(encode(Hello(PROTOCOL_VERSION, "early")))
            client = client_of(worker.address)
            await client.start()
            lost = loss_of(client)
            told = False
            while not told:  # it misses who hangs up at once, and nobody who has hung up tries again
                with stranger(worker.address, secret) as dealer:
                    dealer.send_multipart(encode(Hello(PROTOCOL_VERSION, "late")))
                    await all_waves_reach_the_worker(client)
                    told = "a process without the secret of this worker" in worker.said
                    assert early.poll(0) == dealer.poll(0) == 0
            await all_waves_reach_the_worker(client)
            assert not lost.done()
            await client.close()
            lines = worker.said.count("without the secret")
            assert lines <= 1 + (time.monotonic() - begun) / STRANGER_SECONDS, "not a line for each try"

    run(test)


@pytest.mark.parametrize(("of_worker", "of_server"), [(SECRET, OTHER_SECRET), (SECRET, None), (None, SECRET)])
def test_a_server_without_the_secret_is_told_so(of_worker: str | None, of_server: str | None) -> None:
    async def test() -> None:
        with remote_worker(secret=of_worker) as worker:
            while "a process without the secret of this worker" not in worker.said:  # it misses who hangs up at once
                with pytest.raises(WorkerUnavailable, match=r"does not have the secret of this server .--secret-file"):
                    await client_of(worker.address, of_server).start()
            client = client_of(worker.address, of_worker)
            await client.start()
            await all_waves_reach_the_worker(client)
            await client.close()

    run(test)


def test_connections_that_say_nothing_or_nonsense_are_no_news() -> None:
    async def test() -> None:
        with remote_worker() as worker:
            client = client_of(worker.address)
            await client.start()
            lost = loss_of(client)
            for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f" + bytes(1000)):
                with socket.create_connection(("127.0.0.1", int(worker.address.rpartition(":")[2]))) as raw:
                    raw.sendall(said)
                await all_waves_reach_the_worker(client)
            with stranger(worker.address, SECRET) as dealer:
                dealer.send_multipart([b"\xc1", b""])
                assert await asyncio.to_thread(dealer.poll, int(HANG_SECONDS * 1000))
                assert "malformed" in str(decode_from_worker(dealer.recv_multipart()))
            await all_waves_reach_the_worker(client)
            assert not lost.done()
            await client.close()

    run(test)


def test_the_own_worker_has_no_address_and_no_secret() -> None:
    async def test() -> None:
        client = WorkerClient(LocalWorker(["--name", "demo", "--pace", "0ms"], PACED_WORKER, HANG_SECONDS))
        ready = await client.start()
        line = Path(f"/proc/{ready.pid}/cmdline").read_text().split("\0")
        assert line[line.index("--endpoint") + 1].startswith("fd:")
        assert SECRET_VARIABLE not in Path(f"/proc/{ready.pid}/environ").read_text()
        await all_waves_reach_the_worker(client)
        await client.close()

    run(test)


def test_the_worker_takes_the_secret_out_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    options = parse_options(["--listen", "tcp://0.0.0.0:1", "--model", "m", "--name", "m"])
    assert options.place.secret == SECRET
    assert SECRET_VARIABLE not in os.environ


def test_a_worker_gets_only_the_secret_that_is_meant_for_it() -> None:
    base = {SECRET_VARIABLE: OTHER_SECRET, "PATH": "/bin"}
    assert SECRET_VARIABLE not in worker_environment(base)
    assert worker_environment(base, SECRET)[SECRET_VARIABLE] == SECRET
    assert worker_environment(base)["PATH"] == "/bin"
