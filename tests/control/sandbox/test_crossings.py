"""The compiled way of calls: what it takes over, what it leaves to Python, and machines that cannot compile it."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wasmtime import component

import tests.helpers.wat as wat
from pie_control import host_api
from pie_control.programs.native import SUFFIX
from pie_control.programs.python_guest import guest_hash
from pie_control.sandbox import wasi
from pie_control.sandbox.compiled import crossings as compiled
from pie_control.sandbox.compiled.build import build
from pie_control.sandbox.compiled.crossings import Crossings, find
from pie_control.sandbox.components import load_compiled
from pie_control.sandbox.engine import new_engine
from pie_control.sandbox.fibers import SUSPEND, Instance, Step
from pie_control.sandbox.functions import HostFunction
from pie_control.sandbox.linker import LinkedComponent
from pie_control.sandbox.version import code_version
from pie_inference.options.cache_files import find_sealed
from pie_inference.options.compiling import CannotCompile
from tests.conftest import cache_folder
from tests.control.sandbox.test_values import Guest
from tests.helpers import ways

ENGINE = new_engine()


class Owner:
    """Who makes the calls."""

    instance: Instance


def run(text: str | bytes, functions: dict[str, HostFunction]) -> str | None:
    """The outcome of a component that imports functions by these names."""
    linked = LinkedComponent(
        ENGINE, component.Component(ENGINE, text), lambda _, name: functions.get(name), {}, lambda *_: None,
        lambda: None, ways.current,
    )  # fmt: skip
    instance = Instance(linked, 64 << 20)
    instance.owner = Owner()
    while instance.step() is not Step.DONE:
        if instance.waiting:
            instance.resume([7])
    try:
        return instance.outcome()
    finally:
        instance.close()


# ---- values that Python must write ----


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint16])
def test_arrays_of_any_integers_become_lists(dtype: Any) -> None:
    guest = Guest("(list u32)", "i32 i32")
    for array in (np.arange(9, dtype=dtype), np.arange(18, dtype=dtype)[::2], np.zeros(0, dtype)):
        guest.answer = lambda _, array=array: array
        assert guest.go([]) == array.tolist()


def test_arrays_of_any_floats_become_lists() -> None:
    guest = Guest("(list f32)", "i32 i32")
    for array in (
        np.array([0.5, -2.0], np.float32),
        np.array([0.5, -2.0]),
        np.array([0.5, 9, -2.0, 9], np.float32)[::2],
    ):
        guest.answer = lambda _, array=array: array
        assert guest.go([]) == [0.5, -2.0]


def test_numbers_of_numpy_are_numbers() -> None:
    guest = Guest("(tuple u64 u32)", "i64 i32")
    guest.answer = lambda _: (np.uint64(2**63), np.int32(5))
    assert guest.go((0, 0)) == (2**63, 5)


@pytest.mark.parametrize("wrong", [[1, 2**32], [1, -1], [1, None]])
def test_a_list_that_is_wrong_at_its_end_traps_and_corrupts_nothing(wrong: list[Any]) -> None:
    guest = Guest("(list u32)", "i32 i32")
    guest.answer = lambda _: wrong
    for _ in range(20):
        with pytest.raises(Exception, match="internal error in a host function"):
            guest.go([1, 2])
    guest.answer = None
    assert guest.go([1, 2]) == [1, 2]


# ---- references ----


def test_no_reference_is_lost_or_left_behind() -> None:
    guest = Guest("string", "i32 i32")
    value = "".join(["x"] * 100)  # no constant of the code: garbage of an earlier run of this test would hold that, too
    guest.answer = lambda _: value
    before = sys.getrefcount(value)
    for _ in range(100):
        assert guest.go("abc") == value
        guest.heard.clear()
    assert sys.getrefcount(value) == before


def test_no_reference_is_left_behind_by_errors() -> None:
    guest = Guest("string", "i32 i32")
    error = ValueError("of ours")
    guest.answer = lambda _: _raise(error)
    before = sys.getrefcount(error)
    for _ in range(50):
        with pytest.raises(Exception, match="of ours"):
            guest.go("abc")
        error.__traceback__ = None
    assert sys.getrefcount(error) - before <= 1


def _raise(error: Exception) -> Any:
    raise error


WAIT_AGAIN = """(local.set $i (i32.add (local.get $i) (i32.const 1)))
  (call $wait (i32.const 64) (i32.const 1) (i32.const 32))"""


def test_no_reference_to_the_owner_is_left_behind() -> None:
    owners: list[Any] = []

    def wait(owner: Any, futures: list[int]) -> Any:
        owners.append(owner)
        return futures if len(owners) % 2 else SUSPEND

    again = f"(loop $more {WAIT_AGAIN} (br_if $more (i32.lt_u (local.get $i) (i32.const 40)))) (i32.const 0)"
    assert run(wat.inferlet(f"(local $i i32) {again}", ("wait",)), {"wait": HostFunction(wait, suspends=True)}) is None
    assert len(owners) == 40
    owner = owners[0]
    owners.clear()
    assert sys.getrefcount(owner) == 2


# ---- without Python ----

NATIVE = f"""(component
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock (export "now" (func (result u64)))))
  (import "wasi:random/random@0.2.0"
    (instance $random (export "get-random-bytes" (func (param "len" u64) (result (list u8))))))
  (import "host" (instance $host (export "tell" (func (param "now" u64) (param "bytes" string)))))
  {wat.MEMORY}
  (core func $now (canon lower (func $clock "now")))
  (core func $random (canon lower (func $random "get-random-bytes") {wat.OPTIONS}))
  (core func $tell (canon lower (func $host "tell") {wat.OPTIONS}))
  (core module $Main
    (import "memory" "memory" (memory 1))
    (import "f" "now" (func $now (result i64)))
    (import "f" "random" (func $random (param i64 i32)))
    (import "f" "tell" (func $tell (param i64 i32 i32)))
    (func (export "run") (result i32)
      (local $i i32)
      (call $random (i64.const SIZE) (i32.const 16))
      (loop $next ;; makes text of them: seven bits each
        (i32.store8 (i32.add (i32.load (i32.const 16)) (local.get $i))
          (i32.and (i32.load8_u (i32.add (i32.load (i32.const 16)) (local.get $i))) (i32.const 127)))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $next (i32.lt_u (local.get $i) (i32.load (i32.const 20)))))
      (call $tell (call $now) (i32.load (i32.const 16)) (i32.load (i32.const 20)))
      (i32.const 0)))
  (core instance $main (instantiate $Main (with "memory" (instance $memory)) (with "f" (instance
    (export "now" (func $now)) (export "random" (func $random)) (export "tell" (func $tell))))))
  (func (export "run") (result (result (error string))) (canon lift (core func $main "run") {wat.OPTIONS})))"""


def native(size: int) -> tuple[str | None, list[tuple[int, str]]]:
    """A component that asks WASI for the time and for random bytes, and what it was told."""
    told: list[tuple[int, str]] = []
    functions = {name: function for (_, name), function in wasi.FUNCTIONS.items() if name == "get-random-bytes"}
    functions["now"] = wasi.FUNCTIONS["wasi:clocks/monotonic-clock", "now"]
    functions["tell"] = HostFunction(lambda _owner, now, text: told.append((now, text)), most={"bytes": 1 << 20})
    return run(NATIVE.replace("SIZE", str(size)), functions), told


def test_the_clock_of_wasi_is_that_of_its_timers() -> None:
    before = time.monotonic_ns()
    outcome, [(now, _)] = native(1)
    assert outcome is None
    assert before <= now <= time.monotonic_ns()


@pytest.mark.parametrize("size", [1, 255, 257, wasi.MAX_RANDOM_BYTES])
def test_random_bytes_are_as_many_as_asked_for_and_differ(size: int) -> None:
    texts = {told[0][1] for _, told in (native(size) for _ in range(8))}
    assert {len(text) for text in texts} == {size}
    assert len(texts) > 1
    if size > 10_000:
        assert {len(set(text)) for text in texts} == {128}


def test_too_many_random_bytes_end_the_guest() -> None:
    outcome, told = native(wasi.MAX_RANDOM_BYTES + 1)
    assert outcome == f"more than {wasi.MAX_RANDOM_BYTES} random bytes in one call"
    assert not told


# ---- which functions ----


def test_every_function_that_python_programs_import_is_compiled_but_for_two(
    crossings: Crossings, guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: dict[str, bool] = {}
    functions = {name: function for (_, name), function in host_api.functions().items()}
    names = {id(function.call): name for name, function in functions.items()}
    make = Crossings.crossing

    def crossing(self: Crossings, kinds: Any, result: Any, most: Any, call: Any, *rest: Any) -> Any:
        made = make(self, kinds, result, most, call, *rest)
        taken[names[id(call)]] = made is not None
        return made

    monkeypatch.setattr(Crossings, "crossing", crossing)
    path = find_sealed(guest_cache / "guest", f"{guest_hash()}-{code_version()}", SUFFIX)
    assert path is not None
    guest = load_compiled(ENGINE, path)
    LinkedComponent(
        ENGINE, guest, lambda _, name: functions.get(name), {}, lambda *_: None, lambda: None, crossings
    )  # fmt: skip
    assert len(taken) > 40
    others = {name for name, is_compiled in taken.items() if not is_compiled}
    assert others == {"set-queue-priority", "shift-kvpage"}  # rare: they take a signed number


# ---- machines that cannot ----


def fake_compiler(folder: Path, script: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_compiler_python_does_it_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "build", lambda folder: build(folder, ("no-such-compiler",)))
    with caplog.at_level(logging.WARNING):
        assert find(tmp_path) is None
    (record,) = caplog.records
    assert "there is no C compiler here; install one of no-such-compiler" in record.getMessage()


def test_a_compiler_that_fails_is_told(tmp_path: Path) -> None:
    compiler = fake_compiler(tmp_path / "bin", 'echo "calls.c:1: error: no such header" >&2; exit 1')
    with pytest.raises(CannotCompile, match=r"compiler failed: calls.c:1: error: no such header$"):
        build(tmp_path / "cache", (compiler,))
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_is_no_library_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "wrong.so").write_bytes(b"no library")
    monkeypatch.setattr(compiled, "build", lambda _: tmp_path / "wrong.so")
    with caplog.at_level(logging.WARNING):
        assert find(tmp_path) is None
    assert "in Python only" in caplog.text


@pytest.mark.usefixtures("crossings")
def test_another_layout_is_noticed(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "_LAYOUT", [*compiled._LAYOUT[:-1], 99])
    folder = cache_folder(pytestconfig) / "guest"
    with caplog.at_level(logging.WARNING):
        assert find(folder) is None
    assert "another layout" in caplog.text


def test_it_is_made_for_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(CannotCompile, match="not made for darwin"):
        build(tmp_path)


def test_the_library_is_compiled_once_and_made_anew_when_damaged(crossings: Crossings, tmp_path: Path) -> None:
    path = build(tmp_path)
    made = path.stat().st_mtime_ns
    assert build(tmp_path, ("no-such-compiler",)) == path
    assert path.stat().st_mtime_ns == made
    path.write_bytes(b"damaged")
    assert build(tmp_path).stat().st_size > 1000
