"""How many connections are taken, where file descriptors are few."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from pie_control.errors import ConfigError
from pie_control.http_server import listening
from pie_control.http_server.listening import SPARE, Acceptor, bind, room_for_connections
from tests.helpers.guard import HANG_SECONDS


def test_the_limit_is_raised_as_far_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(64, 256)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    monkeypatch.setattr(os, "listdir", lambda _: ["0"] * 10)
    assert room_for_connections(100) == 100
    assert limits[-1] == (10 + SPARE + 100, 256)
    assert room_for_connections(1000) == 256 - 10 - SPARE
    assert limits[-1] == (256, 256)
    limits[:] = [(8, resource.RLIM_INFINITY)]
    assert room_for_connections(1000) == 1000


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:"), ("::1", r"http://\[::1\]:")])
def test_a_port_in_use_is_told_with_what_may_use_it(host: str, url: str) -> None:
    with bind(host, 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^port {port} of {host} .*pie list --server {url}{port}`.*--port"):
            bind(host, port)
    with pytest.raises(ConfigError, match="choose another --host or --port"):
        bind("192.0.2.1", port)


class Scarce:
    """A listening socket without descriptors for the first tries."""

    def __init__(self, real: socket.socket, lacks: int) -> None:
        self.real = real
        self.lacks = lacks
        self.tries = 0

    def fileno(self) -> int:
        return self.real.fileno()

    def accept(self) -> Any:
        self.tries += 1
        if self.tries <= self.lacks:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.real.accept()


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


def test_a_pause_in_place_of_endless_tries(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(listening, "PAUSE_SECONDS", 0.01)

    async def check() -> None:
        with bind("127.0.0.1", 0) as real:
            scarce: Any = Scarce(real, lacks=5)
            acceptor = Acceptor(scarce, Greeter)
            acceptor.start()
            said = []
            for _ in range(3):
                reader, writer = await asyncio.open_connection(*real.getsockname())
                said.append(await reader.read())
                writer.close()
            acceptor.stop()
            assert said == [b"hello"] * 3
            assert scarce.tries <= 5 + 2 * 3  # and a look for more behind each connection

    asyncio.run(asyncio.wait_for(check(), HANG_SECONDS))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


SERVER = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from pie_control.cli.terminal import log_to_stderr
from tests.helpers.fake_server_api import FakeServerApi, serving
log_to_stderr(20)
async def main():
    async with serving(FakeServerApi()) as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


def test_a_server_with_few_descriptors_says_so_once_and_serves(tmp_path: Any) -> None:
    said = tmp_path / "log"
    with ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(said.open("wb")),
                text=True,
            )
        )
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        address = httpx.URL(url)
        server.send_signal(signal.SIGSTOP)
        clients = [socket.create_connection((address.host, address.port), HANG_SECONDS) for _ in range(100)]
        for index, one in enumerate(clients):
            if index % 3:
                one.close()  # it has gone before the server takes it, or refuses it
        server.send_signal(signal.SIGCONT)
        clients += [socket.create_connection((address.host, address.port), HANG_SECONDS) for _ in range(100)]
        for one in clients:
            one.close()
        assert httpx.get(f"{url}/v1/health", timeout=HANG_SECONDS, trust_env=False).status_code == 200
        server.communicate(timeout=HANG_SECONDS)
    lines = said.read_text().splitlines()
    assert "file descriptors for" in lines[0]
    assert "raise ulimit -n" in lines[0]
    assert len(lines) <= 2, lines  # the other one: that connections wait
