"""Uploaded components, from their bytes to their end, in a server of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import wasmtime

import tests.helpers.wat as wat
from pie_control.errors import BadProgram, UnknownName
from pie_control.inferlets.events import Ended
from pie_control.programs.native import NativeCompiler
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.options.cache_files import write_atomically
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, cache_with_guest, hosted, started


def on_server(cache_dir: Path, body: Callable[[ServerApi], Awaitable[None]], **options: Any) -> None:
    async def check() -> None:
        client = InProcessClient(FakeModel())
        async with started(cache_dir, client, warm_pool=0, **options) as server, asyncio.timeout(HANG_SECONDS):
            await body(server)

    asyncio.run(check())


def binary(*arguments: Any, **more: Any) -> bytes:
    return bytes(wasmtime.wat2wasm(wat.inferlet(*arguments, **more)))


async def end_of(server: ServerApi, component: bytes) -> Ended:
    program = await server.upload(component, "component")
    listener = Listener()
    await server.launch(program.program, listener=listener)
    return await listener.ended


def test_a_component_echoes_a_message(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        program = await server.upload(binary(*wat.ECHO), "echo")
        assert program.kind == "component"
        listener = Listener()
        inferlet = await server.launch("echo", listener=listener)
        await asyncio.sleep(0)
        inferlet.send("Grüße, 世界")
        assert await listener.ended == Ended("finished", "Grüße, 世界", None, inferlet="i1")
        assert listener.messages == ["Grüße, 世界"]

    on_server(guest_cache, body)


def test_a_message_before_the_launch_ran_is_received(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        await server.upload(binary(*wat.ECHO), "echo")
        listener = Listener()
        (await server.launch("echo", listener=listener)).send("early")
        assert (await listener.ended).result == "early"

    on_server(guest_cache, body)


@pytest.mark.parametrize("where", ["run", "start"])
def test_a_loop_ends_at_the_limit_of_processor_time(where: str, guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        loop = binary(wat.FOREVER + wat.SUCCESS) if where == "run" else binary(wat.SUCCESS, start=wat.FOREVER)
        ended = await end_of(server, loop)
        assert ended == Ended(
            "exceeded",
            None,
            "used more than 0.1 s of processor time: does a loop have no end? (--cpu-seconds)",
            inferlet="i1",
        )

    on_server(guest_cache, body, cpu_seconds=0.1)


def test_waiting_at_instantiation_costs_no_processor_time(guest_cache: Path) -> None:
    start = """(call $receive (i32.const 0) (i32.const 16)) (i32.store (i32.const 64) (i32.load (i32.const 20)))
               (call $wait (i32.const 64) (i32.const 1) (i32.const 32))"""

    async def body(server: ServerApi) -> None:
        await server.upload(binary(wat.SUCCESS, ("receive", "wait"), start=start), "waits")
        listener = Listener()
        inferlet = await server.launch("waits", listener=listener)
        before, turns = 0, 0
        while turns == 0 or turns != before:  # for ever, if it took turns while it waits
            await asyncio.sleep(0.05)
            before, turns = turns, server.statistics().hosts[0].turns
        inferlet.send("go on")
        assert (await listener.ended).status == "finished"

    on_server(guest_cache, body)


def test_a_trap_ends_the_inferlet_with_its_cause(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        ended = await end_of(server, binary("unreachable"))
        assert ended.status == "failed"
        assert "unreachable" in (ended.error or "")

    on_server(guest_cache, body)


def test_memory_beyond_the_limit_is_refused(guest_cache: Path) -> None:
    async def body(server: ServerApi) -> None:
        grow = "(if (i32.eq (memory.grow (i32.const 4096)) (i32.const -1)) (then unreachable)) (i32.const 0)"
        assert (await end_of(server, binary(grow))).status == "failed"
        ended = await end_of(server, binary(wat.SUCCESS, pages=4096))
        assert ended.status == "failed"
        assert "memory" in (ended.error or "")

    on_server(guest_cache, body, memory_bytes=64 << 20)


def test_receives_and_sleeps_that_are_cancelled_leave_nothing(guest_cache: Path) -> None:
    run = """(call $receive (i32.const 0) (i32.const 16))
      (loop $again
        (call $receive (i32.const 0) (i32.const 16)) (call $cancel (i32.load (i32.const 20)) (i32.const 32))
        (call $sleep (i64.const 1000000000000000) (i32.const 16))
        (call $cancel (i32.load (i32.const 20)) (i32.const 32))
        (i32.store (i32.const 64) (i32.add (i32.load (i32.const 64)) (i32.const 1)))
        (br_if $again (i32.lt_u (i32.load (i32.const 64)) (i32.const 2000))))
      (call $receive (i32.const 0) (i32.const 16)) (i32.store (i32.const 64) (i32.load (i32.const 20)))
      (call $wait (i32.const 64) (i32.const 1) (i32.const 32)) (i32.const 0)"""

    async def body(server: ServerApi) -> None:
        await server.upload(binary(run, ("receive", "cancel", "sleep", "wait")), "cancels")
        listener = Listener()
        entry = await server.launch("cancels", listener=listener)
        await asyncio.sleep(0)  # it is on its way to the host
        inferlet = hosted(server, entry)
        while inferlet.processor_time.used == 0 or not inferlet.instance.waiting:
            await asyncio.sleep(0.005)
        assert len(inferlet.waits.futures) == 2
        entry.send("to the first receive")
        await asyncio.sleep(0.01)
        assert inferlet.instance.waiting
        entry.send("to the last one")
        assert (await listener.ended).status == "finished"

    on_server(guest_cache, body)


FOREIGN = '(import "acme:robots/arms@1.0.0" (instance (export "wave" (func))))'
SIGNED = '(func (param "source" u32) (result (result s32 (error $error))))'
UNKNOWN = '(import "pie:inferlet/telepathy@0.3.0" (instance (export "guess" (func))))'
LATER = '(import "pie:inferlet/forward@{}" (instance))'


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (binary(wat.SUCCESS, extra=FOREIGN), "acme:robots/arms"),
        (
            binary(wat.SUCCESS, extra=UNKNOWN),
            "`guess` of pie:inferlet/telepathy@0.3.0, which this server",
        ),
        (
            binary(wat.SUCCESS, ("receive",), kinds={"receive": SIGNED}),
            r"imports `receive` of pie:inferlet/core@0.3.0 as func\(u32\) -> result<s32, .*"
            r"this server has func\(u32\) -> result<u32",
        ),
        *(
            (
                binary(wat.SUCCESS, extra=LATER.format(version)),
                f"imports pie:inferlet/forward@{version}; this server offers pie:inferlet in the version 0.3.0: ",
            )
            for version in ("9.9.9", "0.1.0", "0.3.1", "0.2.0", "1.2.0", "0.0.1")
        ),
        (bytes(wasmtime.wat2wasm("(component)")), "does not export the function `run"),
        (b"\0asm\x0d\x00\x01\x00garbage", "not a component of the world"),
    ],
)
def test_a_component_of_another_world_is_refused_and_not_kept(
    component: bytes, message: str, guest_cache: Path
) -> None:
    async def body(server: ServerApi) -> None:
        good = await server.upload(binary(wat.SUCCESS), "same-name")
        before = len(server.programs())
        with pytest.raises(BadProgram, match=message):
            await server.upload(component, "same-name")
        assert len(server.programs()) == before
        assert (await end_of(server, binary(wat.SUCCESS))).status == "finished"
        assert (await server.launch("same-name")).program.hash == good.program
        with pytest.raises(UnknownName):
            await server.launch("another-name")

    on_server(guest_cache, body)


def test_uploads_of_one_component_at_a_time_compile_it_once(
    tmp_path: Path, guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    component = binary(wat.SUCCESS, data="compiled once")
    compile_it = NativeCompiler.compile

    async def counts(*arguments: Any) -> Path:
        compiled.append(arguments)
        return await compile_it(*arguments)

    monkeypatch.setattr(NativeCompiler, "compile", counts)

    async def body(server: ServerApi) -> None:
        answers = await asyncio.gather(*(server.upload(component, f"name {number}") for number in range(5)))
        assert len({answer.program for answer in answers}) == 1
        assert len(compiled) == 1

    on_server(cache_with_guest(tmp_path, guest_cache), body)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:1000], lambda data: b"", lambda data: data[:-100] + bytes(100), lambda data: data * 2]
)
def test_a_damaged_compiled_form_is_compiled_anew(
    damage: Callable[[bytes], bytes], tmp_path: Path, guest_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = cache_with_guest(tmp_path, guest_cache)
    component = binary(*wat.ECHO, data="of this test")

    async def upload(server: ServerApi) -> None:
        program = await server.upload(component, "damaged")
        (path,) = (cache / "compiled").glob(f"{program.program}-*")
        write_atomically(path, damage(path.read_bytes()))  # never in place: it is mapped

    async def launch(server: ServerApi) -> None:
        listener = Listener()
        inferlet = await server.launch("damaged", listener=listener)
        inferlet.send("still there")
        assert (await listener.ended).result == "still there"

    on_server(cache, upload)
    on_server(cache, launch)
    assert "is damaged and made anew" in caplog.text
