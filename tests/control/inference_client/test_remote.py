"""Workers that listen for servers: how servers come, go, come back, and are told what is wrong."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from pie_control.errors import WorkerUnavailable
from pie_control.inference_client.client import WorkerClient
from pie_control.inference_client.interface import differences
from pie_control.inference_client.remote import RemoteWorker
from pie_control.processes import status_line
from pie_control.testing.fake_model import FakeModel
from pie_inference.config import Place
from pie_inference.errors import CheckpointError
from pie_inference.protocol import PROTOCOL_VERSION, Hello, Ready, RunWave, WorkerFailed, decode_from_worker, encode
from pie_inference.serving import sessions
from tests.helpers.clients import loss_of, run
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.remote_workers import LOADS, OTHER_VERSION, SECRET, free_address, remote_worker
from tests.helpers.tree import ROOT

from .test_strangers import all_waves_reach_the_worker, client_of, stranger

PATIENCE = 30.0
"""Seconds from the last word of a worker on; it takes longer to start beside others."""


def wave(number: int) -> RunWave:
    return RunWave(number, "demo", ())


def test_one_server_after_the_other_is_served() -> None:
    async def test() -> None:
        with remote_worker() as worker:
            for times in range(1, 4):
                client = client_of(worker.address)
                assert (await client.start()).pid == worker.pid
                await all_waves_reach_the_worker(client)
                await client.close()
                await asyncio.to_thread(worker.until_it_says, "has gone; waits for the next one", times)

    run(test)


def test_servers_may_come_at_once_when_one_has_left() -> None:
    """Their connections have the same descriptor, so the end of the old one was taken for that of the new one."""
    with remote_worker() as worker:
        for number in range(30):
            with stranger(worker.address, SECRET) as dealer:
                dealer.send_multipart(encode(Hello(PROTOCOL_VERSION, f"server {number}")))
                for asked in range(1, 4):
                    assert dealer.poll(int(HANG_SECONDS * 1000)), f"server {number} was forgotten"
                    heard = decode_from_worker(dealer.recv_multipart())
                    assert isinstance(heard, Ready) if asked == 1 else getattr(heard, "wave", 0) == asked - 1, heard
                    dealer.send_multipart(encode(wave(asked)))


def test_a_second_server_is_refused_while_one_is_served() -> None:
    async def test() -> None:
        with remote_worker() as worker:
            client, second = client_of(worker.address), client_of(worker.address)
            await client.start()
            lost = loss_of(client)
            with pytest.raises(WorkerUnavailable, match=r"serves another server, at 127\.0\.0\.1, until that one ends"):
                await second.start()
            worker.until_it_says("a second server, at 127.0.0.1, is refused")
            await all_waves_reach_the_worker(client)
            assert not lost.done()
            await client.close()
            await asyncio.to_thread(worker.until_it_says, "waits for the next one")
            await second.start()
            await all_waves_reach_the_worker(second)
            await second.close()

    run(test)


def test_a_worker_that_is_killed_is_noticed_and_serves_when_it_is_there_again() -> None:
    async def test() -> None:
        with remote_worker() as worker:
            client = client_of(worker.address)
            await client.start()
            lost = loss_of(client)
            worker.process.kill()
            assert "the connection to the worker at tcp://127" in await asyncio.wait_for(lost, HANG_SECONDS)
            with pytest.raises(WorkerUnavailable):
                client.send(wave(1))
            with pytest.raises(WorkerUnavailable, match=r"no worker answers at .*: start one there with `pie worker"):
                await client.restart()
        with remote_worker(address=worker.address) as other:
            assert (await client.restart()).pid == other.pid
            await all_waves_reach_the_worker(client)
            await client.close()

    run(test)


def test_a_worker_that_is_cut_off_is_noticed_though_nothing_is_asked_of_it() -> None:
    async def test() -> None:
        with remote_worker() as worker:
            client = client_of(worker.address)
            await client.start()
            lost = loss_of(client)
            os.kill(worker.pid, signal.SIGSTOP)
            assert "was lost" in await asyncio.wait_for(lost, HANG_SECONDS)
            os.kill(worker.pid, signal.SIGCONT)
            assert (await client.restart()).pid == worker.pid
            await all_waves_reach_the_worker(client)
            await client.close()

    run(test)


def test_a_server_that_is_cut_off_gives_way_to_another_one() -> None:
    async def test() -> None:
        with remote_worker() as worker, stopped_server(worker.address):
            await asyncio.to_thread(worker.until_it_says, "has gone; waits for the next one")
            client = client_of(worker.address)
            await client.start()
            await all_waves_reach_the_worker(client)
            await client.close()

    run(test)


SERVER = """
import asyncio, sys
from pie_control.inference_client.client import WorkerClient
from pie_control.inference_client.remote import RemoteWorker

async def main():
    await WorkerClient(RemoteWorker(*sys.argv[1:])).start()
    print("served", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@contextmanager
def stopped_server(address: str) -> Iterator[None]:
    command = [sys.executable, "-c", SERVER, address, SECRET]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"served\n"
        server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            server.kill()


def test_the_new_connection_of_a_server_takes_the_place_of_its_old_one() -> None:
    """The old one may be cut off, which the worker has not noticed yet."""
    with (
        remote_worker() as worker,
        stranger(worker.address, SECRET) as old,
        stranger(worker.address, SECRET) as new,
    ):
        for dealer in (old, new):
            dealer.send_multipart(encode(Hello(PROTOCOL_VERSION, "one server")))
            assert dealer.poll(int(HANG_SECONDS * 1000))
            assert isinstance(decode_from_worker(dealer.recv_multipart()), Ready)
        old.send_multipart(encode(wave(1)))
        new.send_multipart(encode(wave(2)))
        assert new.poll(int(HANG_SECONDS * 1000))
        assert getattr(decode_from_worker(new.recv_multipart()), "wave", None) == 2
        assert old.poll(0) == 0


def test_a_server_that_waits_is_told_how_far_the_worker_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MAY_BE_LOADED", str(loaded := tmp_path / "loaded"))
    monkeypatch.setattr(status_line, "INTERVAL_SECONDS", HANG_SECONDS)

    async def test() -> None:
        with remote_worker("--pace", "1ms", "--name", "demo", program=LOADS, ready=False) as worker:
            worker.until_it_says("loads its model")
            first, second = (WorkerClient(RemoteWorker(worker.address, SECRET, PATIENCE)) for _ in range(2))
            starts = asyncio.gather(first.start(), second.start(), return_exceptions=True)
            while not any("%" in message for message in caplog.messages):
                await asyncio.sleep(0.01)
            loaded.touch()
            ready, refused = sorted(await starts, key=lambda one: isinstance(one, Exception))
            assert isinstance(ready, Ready)
            assert "serves another server" in str(refused)
            worker.until_it_says("worker: loading weights: ")
            for client in (first, second):
                await client.close()

    caplog.set_level(logging.INFO, "pie.worker")
    run(test)
    told = [message for message in caplog.messages if "%" in message]
    assert len(told) == 1, "a log has a line now and then"
    assert re.fullmatch(r"the worker at tcp://\S+: loading weights: 50%", told[0])


def test_versions_that_differ_are_told_on_both_sides() -> None:
    async def test() -> None:
        named = ("--pace", "1ms", "--name", "demo")
        with remote_worker(*named, program=OTHER_VERSION) as worker:
            with pytest.raises(WorkerUnavailable, match=f"speaks version 99 .* the server version {PROTOCOL_VERSION}"):
                await client_of(worker.address).start()
            worker.until_it_says("is not served: the worker speaks version 99")
        with remote_worker() as worker:
            with stranger(worker.address, SECRET) as dealer:
                dealer.send_multipart(encode(Hello(1, "old")))
                assert await asyncio.to_thread(dealer.poll, int(HANG_SECONDS * 1000))
                answer = decode_from_worker(dealer.recv_multipart())
            assert isinstance(answer, WorkerFailed)
            assert "install the same version of Pie on both" in answer.message
            client = client_of(worker.address)
            await client.start()
            await client.close()

    run(test)


def test_a_worker_that_comes_back_with_another_model_is_told_so_and_waits() -> None:
    async def test() -> None:
        paced = ("--worker", "paced:1ms", "--model")
        with remote_worker(*paced, "a=demo") as worker:
            client = client_of(worker.address)
            await client.start()
            worker.process.kill()
        with remote_worker(*paced, "b=demo", address=worker.address) as other:
            with pytest.raises(WorkerUnavailable, match="serves model b now, and a is wanted"):
                await client.restart()
            other.until_it_says("does not want this worker: the worker at")
        larger = remote_worker(*paced, "a=demo", "--page-size", "32", address=worker.address)
        with larger, pytest.raises(WorkerUnavailable, match="another model a than before: page_size differ"):
            await client.restart()
        with remote_worker(*paced, "a=demo", "--pages", "999", address=worker.address):
            assert (await client.restart()).models[0].num_pages == 999
            await client.close()

    run(test)


def test_a_server_says_that_it_waits_and_for_how_long(caplog: pytest.LogCaptureFixture) -> None:
    address = free_address()

    async def test() -> None:
        nobody = WorkerClient(RemoteWorker(address, SECRET, 1.5))
        with pytest.raises(WorkerUnavailable, match=f"no worker answers at {address}"):
            await nobody.start()
        client = client_of(address)
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(0.5)
        assert not starting.done()
        with remote_worker(address=address):
            await starting
            await all_waves_reach_the_worker(client)
            await client.close()

    with caplog.at_level(logging.INFO):
        run(test)
    assert f"waits for the worker at {address}, for 1.5 s at most (--worker-wait): nobody answers there" in caplog.text
    assert f"the worker at {address} is there" in caplog.text


def test_a_server_that_waits_while_the_model_is_loaded_is_told_why_that_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    address, heard = free_address(), threading.Event()

    class Waiting(RemoteWorker):
        def is_told(self, progress: str) -> None:
            heard.set()

    class Loading:
        def __enter__(self) -> FakeModel:
            deadline = time.monotonic() + HANG_SECONDS
            while not heard.wait(0.01) and time.monotonic() < deadline:
                print("half of it", end="\r", file=sys.stderr)
            raise CheckpointError("model.safetensors is not complete")

        def __exit__(self, *_: object) -> None:
            raise AssertionError("it was not loaded")

    async def test() -> None:
        served = asyncio.create_task(
            asyncio.to_thread(sessions.run, Place("", address, SECRET), Loading, lambda transport, worker: None)
        )
        with pytest.raises(WorkerUnavailable, match=r"model\.safetensors is not complete"):
            await WorkerClient(Waiting(address, SECRET, HANG_SECONDS)).start()
        assert await served == 1

    run(test)
    assert "model.safetensors is not complete" in capsys.readouterr().err


def test_a_listening_worker_says_why_it_cannot_listen() -> None:
    with remote_worker() as worker, remote_worker(address=worker.address, ready=False) as second:
        assert second.ends() == 1
        assert f"cannot listen at {worker.address}: Address already in use" in second.said


def test_workers_of_one_model_may_differ_in_their_pools_only() -> None:
    (one,) = FakeModel(num_pages=8).describe()
    (other,) = FakeModel(num_pages=16).describe()
    assert differences(one, other) == ""
    (other,) = FakeModel(page_size=32).describe()
    assert "page_size" in differences(one, other)
    many, few = (replace(one, num_states=count, state_bytes=size) for count, size in ((64, 4096), (48, 2048)))
    assert differences(many, few) == "", "how many states have room depends on what is free"
