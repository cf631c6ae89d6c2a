"""Programs on application hosts that are processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import wasmtime

import tests.helpers.wat as wat
from pie_control.engine import hosts
from pie_control.errors import BadProgram
from pie_control.programs.host import programs as host_programs
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, cache_with_guest, host_pids, started

ECHO = b"async def main(args):\n    text = await args.receive()\n    await args.send(text)\n    return text\n"
SLOW = b"def main(args): pass\n" + b"\n".join(b"def f%d(a, b, c): return a * b + c" % n for n in range(20_000))


@pytest.fixture
def cache(tmp_path: Path, guest_cache: Path) -> Path:
    return cache_with_guest(tmp_path, guest_cache)


def on_hosts(cache: Path, body: Callable[[ServerApi], Awaitable[None]]) -> None:
    async def check() -> None:
        client = InProcessClient(FakeModel())
        async with started(cache, client, warm_pool=0, hosts=2) as server, asyncio.timeout(HANG_SECONDS):
            await body(server)

    asyncio.run(check())


def component(*arguments: Any) -> bytes:
    return bytes(wasmtime.wat2wasm(wat.inferlet(*arguments)))


async def echo(server: ServerApi, program: str, count: int) -> list[str]:
    """What `count` inferlets at a time say."""
    listeners = [Listener() for _ in range(count)]
    entries = await asyncio.gather(*(server.launch(program, listener=one) for one in listeners))
    for entry in entries:
        entry.send("hello")
    ends = await asyncio.gather(*(one.ended for one in listeners))
    assert {ended.status for ended in ends} == {"finished"}
    return [text for one in listeners for text in one.messages]


def test_programs_are_compiled_once_for_all_hosts_and_never_here(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("the control process makes an engine of wasmtime")

    monkeypatch.setattr(host_programs, "new_engine", refuse)

    async def body(server: ServerApi) -> None:
        for data, suffix in ((ECHO, ".code"), (component(*wat.ECHO), ".cwasm")):
            program = (await server.upload(data, "")).program
            (path,) = (cache / "compiled").glob(f"{program}-*{suffix}")
            before = path.stat().st_mtime_ns
            assert await echo(server, program, 8) == ["hello"] * 8
            assert len(server._library._prepared._ready[program].hosts) == 2
            assert [each.stat().st_mtime_ns for each in (cache / "compiled").glob(f"{program}-*")] == [before]

    on_hosts(cache, body)


def test_what_a_host_refuses_is_said_and_leaves_nothing(cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        empty = bytes(wasmtime.wat2wasm("(component)"))
        for data, message in ((b"def main(:", "cannot be used"), (empty, "does not export the function")):
            with pytest.raises(BadProgram, match=message):
                await server.upload(data, "bad")
        assert server.programs() == ()
        assert list((cache / "compiled").iterdir()) == []

    on_hosts(cache, body)


def test_a_host_that_dies_while_it_compiles_loses_no_program(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "PATIENCE_SECONDS", HANG_SECONDS)

    async def body(server: ServerApi) -> None:
        await server.upload(ECHO, "python")
        await server.upload(component(*wat.ECHO), "component")
        arriving = asyncio.create_task(server.upload(SLOW, "slow"))
        while not server._library._prepared._under_way:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        killed = host_pids(server)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        await arriving  # another host has compiled it
        assert {program.name for program in server.programs()} == {"python", "component", "slow"}
        while {*killed} & {*host_pids(server)} or server.outages():
            await asyncio.sleep(0.05)
        for program in ("python", "component"):
            assert await echo(server, program, 4) == ["hello"] * 4

    on_hosts(cache, body)
