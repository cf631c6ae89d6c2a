"""`pie build`: components of core modules."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import wasmtime
from hypothesis import given
from hypothesis import strategies as st

from pie_control.authoring.build import build, component_of
from pie_control.errors import BadProgram, BadRequest
from pie_control.host_api import wit_files
from pie_control.inferlets.events import Ended
from pie_control.sandbox.components import Component, compile_component, imported_functions
from pie_control.sandbox.encoding.component import encode
from pie_control.sandbox.encoding.types import CoreType, read_function
from pie_control.sandbox.engine import LinkError, new_engine
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, started

PACKAGE = wit_files.current()
CORE = f"{PACKAGE.name}/core@{PACKAGE.version}"
MEMORY = '(memory (export "memory") 1)'
REALLOC = """
  (global $next (mut i32) (i32.const 4096))
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (global.set $next (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
    (global.get $next)
    (global.set $next (i32.add (global.get $next) (local.get 3))))"""
RUN = '(func (export "run") (result i32) (i32.const 0))'
SEND = f'(import "{CORE}" "send" (func $send (param i32 i32 i32 i32)))'
SENDS = f"""{SEND} {MEMORY} {REALLOC} (data (i32.const 256) "ready, ") (data (i32.const 272) "set, go")
  (func (export "_initialize") (call $send (i32.const 0) (i32.const 256) (i32.const 7) (i32.const 128)))
  (func (export "run") (result i32)
    (call $send (i32.const 0) (i32.const 272) (i32.const 7) (i32.const 128)) (i32.const 64))
  (func (export "cabi_post_run") (param i32) AFTER)"""


def module(text: str) -> bytes:
    return bytes(wasmtime.wat2wasm(f"(module {text})"))


def imports(interface: str, name: str, kind: str = "(func)") -> str:
    return f'(import "{interface}" "{name}" {kind})'


def test_the_whole_contract_can_be_imported() -> None:
    wanted = {key: text for key, text in PACKAGE.signatures.items() if key[0] in PACKAGE.world}
    assert len(wanted) > 70
    every = [
        imports(f"{PACKAGE.name}/{of}@{PACKAGE.version}", name, f"(func {read_function(text).lowered().written()})")
        for (of, name), text in wanted.items()
    ]
    engine = new_engine()
    component = Component(engine, encode(module("\n".join([*every, MEMORY, REALLOC, RUN])), PACKAGE))
    found = {
        (interface.removeprefix(f"{PACKAGE.name}/").partition("@")[0], name): text
        for interface, name, text in imported_functions(engine, component)
    }
    assert found == wanted


def test_only_what_is_used_is_imported() -> None:
    engine = new_engine()
    with_one = Component(engine, encode(module(f"{SEND} {MEMORY} {REALLOC} {RUN}"), PACKAGE))
    assert [name for _, name, _ in imported_functions(engine, with_one)] == ["send"]
    assert list(Component(engine, encode(module(MEMORY + RUN), PACKAGE)).type.imports(engine)) == []


@pytest.mark.parametrize(
    ("signature", "core"),
    [
        ("func() -> _", CoreType((), ())),
        ("func(u32, u64, f32, f64, bool, char) -> u8", CoreType(("i32", "i64", "f32", "f64", "i32", "i32"), ("i32",))),
        ("func(string, list<u64>) -> string", CoreType(("i32",) * 5, ())),
        ("func(option<f32>) -> option<u32>", CoreType(("i32", "f32", "i32"), ())),
        ("func(result<f32, u32>, result<u32, f64>) -> enum{a, b-c}", CoreType(("i32", "i32", "i32", "i64"), ("i32",))),
        (
            "func(record{a: u8, b: tuple<u64, string>}) -> result<_, _>",
            CoreType(("i32", "i64", "i32", "i32"), ("i32",)),
        ),
        ("func(string, string, string, string, string, string, string, string) -> _", CoreType(("i32",) * 16, ())),
        (
            "func(string, string, string, string, string, string, string, string, u8) -> u64",
            CoreType(("i32",), ("i64",)),
        ),
    ],
)
def test_signatures_are_lowered_as_the_canonical_abi_says(signature: str, core: CoreType) -> None:
    assert read_function(signature).lowered() == core


async def end_of(server: ServerApi, component: bytes) -> tuple[Ended, list[str]]:
    """How the inferlet ended, and its messages."""
    program, listener = await server.upload(component, "story"), Listener()
    await server.launch(program.program, listener=listener)
    return await listener.ended, listener.messages


def test_a_built_component_runs(guest_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "story.wasm").write_bytes(module(SENDS.replace("AFTER", "")))
    made = build(tmp_path / "story.wasm")
    assert made == tmp_path / "story.component.wasm"

    async def check() -> None:
        async with (
            started(guest_cache, InProcessClient(FakeModel()), warm_pool=0) as server,
            asyncio.timeout(HANG_SECONDS),
        ):
            ended, messages = await end_of(server, made.read_bytes())
            assert (ended.status, messages) == ("finished", ["ready, ", "set, go"])
            ended, messages = await end_of(server, encode(module(SENDS.replace("AFTER", "unreachable")), PACKAGE))
            assert (ended.status, messages) == ("failed", ["ready, ", "set, go"])
            assert "unreachable" in (ended.error or "")
            early = SENDS.replace('(func (export "_initialize")', "(start $early) (func $early").replace("AFTER", "")
            ended, messages = await end_of(server, encode(module(early), PACKAGE))
            assert (ended.status, messages) == ("failed", [])
            assert "export it as `_initialize`" in (ended.error or "")
            large = f'(memory (export "memory") 65536) {RUN}'
            ended, _ = await end_of(server, encode(module(large), PACKAGE))
            assert "the program has a memory of more than 256 MiB, its limit" in (ended.error or "")

    asyncio.run(check())


CLOCKS = f"""
  {imports("wasi:clocks/monotonic-clock@0.2.0", "now", "(func $since (result i64))")}
  {imports("wasi:clocks/wall-clock@0.2.0", "now", "(func $now (param i32))")}
  {imports("wasi:random/random@0.2.0", "get-random-u64", "(func $random (result i64))")}
  {MEMORY} {REALLOC} (func (export "run") (result i32) (local $before i64)
    (local.set $before (call $since))
    (if (i64.eqz (i64.sub (call $random) (call $random))) (then unreachable))
    (if (i64.lt_u (call $since) (local.get $before)) (then unreachable))
    (call $now (i32.const 256))
    (if (i64.lt_u (i64.load (i32.const 256)) (i64.const {int(time.time())})) (then unreachable))
    (if (i32.gt_u (i32.load (i32.const 264)) (i32.const 999999999)) (then unreachable))
    (i32.const 64))"""


def test_a_module_may_ask_clocks_and_for_random_numbers(guest_cache: Path) -> None:
    async def check() -> tuple[Ended, list[str]]:
        async with (
            started(guest_cache, InProcessClient(FakeModel()), warm_pool=0) as server,
            asyncio.timeout(HANG_SECONDS),
        ):
            return await end_of(server, encode(module(CLOCKS), PACKAGE))

    ended, _ = asyncio.run(check())
    assert (ended.status, ended.error) == ("finished", None)


WRONG = {
    "is a component already: run or upload it as it is": bytes(wasmtime.wat2wasm("(component)")),
    "is no WebAssembly module": b"int main() {}",
    "is no valid WebAssembly module; build it anew: unexpected end": module(MEMORY + RUN)[:-3],
    "needs a part of WebAssembly that inferlets do not have; build it without: .* gc": module(
        f"(type (struct)) {MEMORY} {RUN}"
    ),
    "needs a part .*; build it without: threads must be enabled": module(
        f'(memory (export "memory") 1 2 shared) {RUN}'
    ),
    "needs a part .*; build it without: .*threads support is not enabled": module(
        f"{MEMORY} {RUN} (func (drop (i32.atomic.load (i32.const 0))))"
    ),
    "imports GOT.mem.x: these are of a dynamic library: link it as a program": module(
        imports("GOT.mem", "x", "(global (mut i32))") + MEMORY + RUN
    ),
    "exports no function `run`": module(MEMORY),
    "exports no memory of 32 bits": module(RUN),
    "has 2 memories, and an inferlet gets one: build it as one module": module(MEMORY + "(memory 1)" + RUN),
    "exports no function `cabi_realloc`": module(SEND + MEMORY + RUN),
    r"exports `run` as \(i32\) -> \(\); it must be \(\) -> \(i32\)": module(
        MEMORY + '(func (export "run") (param i32))'
    ),
    r"exports `run` as \(v128\) -> \(reference\); it must be": module(
        f'(type $t (func)) {MEMORY} (func (export "run") (param v128) (result (ref null $t)) ref.null $t)'
    ),
    r"imports `send` of .* as \(reference\) -> \(\); the contract's": module(
        "(type $t (func))" + imports(CORE, "send", "(func (param (ref $t)))")
    ),
    "exports `cabi_realloc` as no function": module(
        MEMORY + RUN + '(global (export "cabi_realloc") i32 (i32.const 0))'
    ),
    r"imports wasi_snapshot_preview1.fd_write: .* build it for wasm32-unknown-unknown": module(
        imports("wasi_snapshot_preview1", "fd_write") + MEMORY + RUN
    ),
    "imports wasi:clocks/wall-clock@0.2.0.resolution: .* Of WASI 0.2.0 there are `now`": module(
        imports("wasi:clocks/wall-clock@0.2.0", "resolution") + MEMORY + RUN
    ),
    "imports env.abort: give `--use abort=`": module(imports("env", "abort") + MEMORY + RUN),
    "imports env.sin: these are undefined in the program": module(imports("env", "sin") + MEMORY + RUN),
    "imports env.memory: these are": module(imports("env", "memory", "(memory 1)") + RUN),
    "imports __wbindgen_placeholder__.x: .* without wasm-bindgen": module(imports("__wbindgen_placeholder__", "x")),
    r"imports a.f0, .*, a.f4 and 3 more: an inferlet imports": module("".join(imports("a", f"f{i}") for i in range(8))),
    r"imports pie:inferlet/core@0.2.9, and this is version": module(imports("pie:inferlet/core@0.2.9", "send")),
    r"imports pie:inferlet/core@9.0.0, and this is version": module(imports("pie:inferlet/core@9.0.0", "send")),
    r"(?s)imports pie:inferlet/core@1+.*, and this is version": module(
        imports(f"pie:inferlet/core@{'1' * 5000}.0.0", "send")
    ),
    r"imports pie:inferlet/core@0.03.0, and this is version": module(imports("pie:inferlet/core@0.03.0", "send")),
    r"imports pie:inferlet/core, and this is version": module(imports("pie:inferlet/core", "send")),
    "imports `sent` of .*, which the contract does not have": module(imports(CORE, "sent")),
    "imports `source` of .*, which the contract does not have": module(
        imports(f"{PACKAGE.name}/guest-source@{PACKAGE.version}", "source")
    ),
    r"imports `send` of .* as \(i32\) -> \(\); the contract's is \(i32, i32, i32, i32\) -> \(\)": module(
        imports(CORE, "send", "(func (param i32))")
    ),
    "imports `send` of .* twice: declare it once": module(2 * SEND.replace("$send ", "")),
    "imports `send` of .* as no function; the contract's": module(imports(CORE, "send", "(global i32)")),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_module_is_refused_with_what_to_do(message: str, tmp_path: Path) -> None:
    (tmp_path / "story.wasm").write_bytes(WRONG[message])
    with pytest.raises(BadProgram, match=message) as refused:
        component_of(tmp_path / "story.wasm")
    assert len(str(refused.value)) < 5000


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot read"):
        build(tmp_path / "story.wasm")
    (tmp_path / "story.wasm").write_bytes(module(MEMORY + RUN))
    with pytest.raises(BadRequest, match="cannot write"):
        build(tmp_path / "story.wasm", tmp_path / "no" / "folder")


VALID = module(SENDS.replace("AFTER", ""))


@given(st.data())
def test_damaged_modules_are_refused_or_make_valid_components(data: st.DataObject) -> None:
    damaged: Any = bytearray(VALID[: data.draw(st.integers(0, len(VALID)), label="end")])
    for place, byte in data.draw(st.lists(st.tuples(st.integers(8, len(VALID)), st.integers(0, 255)), max_size=3)):
        if place < len(damaged):
            damaged[place] = byte
    try:
        component = encode(bytes(damaged), PACKAGE)
    except LinkError:
        return
    compile_component(new_engine(), component)
