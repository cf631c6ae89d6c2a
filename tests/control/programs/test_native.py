"""Compiling components in processes with bounds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import wasmtime

import tests.helpers.wat as wat
from pie_control.errors import BadProgram
from pie_control.programs import native
from pie_control.programs.native import SUFFIX, NativeCompiler
from pie_control.sandbox.components import load_compiled
from pie_control.sandbox.engine import new_engine
from pie_inference.options.cache_files import find_sealed
from pie_inference.options.lifetime import command_of
from tests.helpers import bombs
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.processes import compilers


def compile_it(data: bytes, folder: Path, seconds: float = HANG_SECONDS, memory_bytes: int = 1 << 30) -> Path:
    async def run() -> Path:
        return await asyncio.wait_for(
            NativeCompiler(seconds, memory_bytes).compile(data, folder, "stem", "t"), HANG_SECONDS
        )

    return asyncio.run(run())


def leaves_nothing(folder: Path) -> bool:
    return not list(folder.iterdir()) and not compilers()


def test_a_component_is_compiled_to_a_sealed_file(tmp_path: Path) -> None:
    path = compile_it(bytes(wasmtime.wat2wasm(wat.inferlet(wat.SUCCESS))), tmp_path)
    assert path == find_sealed(tmp_path, "stem", SUFFIX)
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600
    load_compiled(new_engine(), path)


@pytest.mark.parametrize(
    "data", [b"\0asm\x0d\x00\x01\x00garbage", b"\0asm\x0d\x00\x01\x00" + b"\xff" * 1_000_000, bombs.deep_types(30)]
)
def test_a_broken_component_is_refused_with_a_short_reason(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(BadProgram, match="not a component of the world") as refusal:
        compile_it(data, tmp_path)
    assert 10 < len(str(refusal.value)) < 5000
    assert leaves_nothing(tmp_path)


@pytest.mark.parametrize(
    "extra",
    [
        "(core module (memory 1) (memory 1))",
        "(core module $M2 (memory 1)) (core instance (instantiate $M2))",
        "(component $C (core module $M2 (memory 1)) (core instance (instantiate $M2))) (instance (instantiate $C))",
        f'(import "wasi:a/b" (instance {" ".join(f"""(export "r{n}" (type (sub resource)))""" for n in range(4000))}))',
    ],
)
def test_more_memories_or_types_than_an_inferlet_gets_are_refused(extra: str, tmp_path: Path) -> None:
    with pytest.raises(BadProgram, match=r"has [23] memories, and an inferlet gets one: build it|bytes of types, impo"):
        compile_it(bytes(wasmtime.wat2wasm(wat.inferlet(wat.SUCCESS, extra=extra))), tmp_path)
    assert leaves_nothing(tmp_path)


def test_what_takes_too_long_is_killed(tmp_path: Path) -> None:
    with pytest.raises(BadProgram, match=r"took longer than 1 s to compile.*--compile-seconds"):
        compile_it(bombs.slow(32_000), tmp_path, seconds=1.0)
    assert leaves_nothing(tmp_path)


def test_what_waits_for_a_processor_does_not_take_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(module: str) -> list[str]:
        return ["sh", "-c", 'sleep 1.2; exec "$@"', "sh", *command_of(module)]

    monkeypatch.setattr(native, "command_of", late)
    monkeypatch.setattr(native, "BUSY", HANG_SECONDS)
    assert compile_it(bytes(wasmtime.wat2wasm(wat.inferlet(wat.SUCCESS))), tmp_path, seconds=1.0).exists()


def test_what_takes_too_much_memory_is_refused(tmp_path: Path) -> None:
    """A kilobyte that would need a terabyte."""
    bomb = bombs.nested(32)
    assert len(bomb) < 2000
    with pytest.raises(BadProgram, match=r"within 536870912 bytes of memory.*--compile-memory-bytes"):
        compile_it(bomb, tmp_path, memory_bytes=512 << 20)
    assert leaves_nothing(tmp_path)


def test_a_cancelled_compilation_leaves_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        task = asyncio.create_task(NativeCompiler().compile(bombs.slow(32_000), tmp_path, "stem", "tenant"))
        while not compilers():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert leaves_nothing(tmp_path)

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


def test_a_small_component_of_another_tenant_does_not_wait_for_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "PLACES", 2)

    async def test() -> None:
        compiler = NativeCompiler(HANG_SECONDS)
        slow = [
            asyncio.create_task(compiler.compile(bombs.slow(32_000), tmp_path, f"slow{number}", "one"))
            for number in range(3)
        ]
        await asyncio.sleep(0)
        await compiler.compile(wat.inferlet(wat.SUCCESS), tmp_path, "small", "another")
        assert not any(task.done() for task in slow)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)

    asyncio.run(asyncio.wait_for(test(), HANG_SECONDS))


def test_a_compiler_that_outlives_the_server_ends_by_itself(tmp_path: Path) -> None:
    """The bound of its processor time is its own."""
    child = ["-m", "pie_control.programs.compile_child", str(tmp_path / "out"), str(1 << 30), "1"]
    done = subprocess.run(
        [sys.executable, *child], input=bombs.slow(32_000), capture_output=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode < 0
