"""Raw conversion of component values against wasmtime-py's own, in both directions."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from wasmtime import WasmtimeError, component
from wasmtime.component import _types as wt

from pie_control.sandbox import selftest as wasm_selftest
from pie_control.sandbox.components import describe
from pie_control.sandbox.engine import new_engine
from pie_control.sandbox.functions import HostFunction, add_function, run_guest_of
from pie_control.sandbox.values import SIZE, ContractError, Result, reader, writer
from tests.helpers import ways
from tests.helpers.wat import echo

ENGINE = new_engine()
BIG = 100_000


class Guest:
    """A component that passes values of one type; the host side is ours, the caller's is wasmtime-py's."""

    def __init__(self, kind: str, flat: str, definition: str = "") -> None:
        self.heard: list[Any] = []
        self.answer: Any = None
        self._component = component.Component(ENGINE, echo(kind, flat, definition))
        self._linker = component.Linker(ENGINE)
        host: Any = self._component.type.imports(ENGINE)["host"].ty
        self.function = host.exports(ENGINE)["echo"].ty
        with self._linker.root() as root, root.add_instance("host") as instance:
            self._kept = add_function(
                instance, "echo", HostFunction(self._call, most={"v": BIG}), self.function, ways.current
            )

    def _call(self, _owner: Any, value: Any) -> Any:
        self.heard.append(value)
        return self.answer(value) if callable(self.answer) else value

    def go(self, value: Any) -> Any:
        returned = run_guest_of(ENGINE, self._linker, self._component, "go", value)
        return getattr(returned, "payload", returned)


CASES: list[tuple[str, str, list[Any]]] = [
    ("bool", "i32", [True, False]),
    ("u8", "i32", [0, 255]),
    ("s8", "i32", [-128, 127]),
    ("u16", "i32", [0, 65535]),
    ("s16", "i32", [-32768, 32767]),
    ("u32", "i32", [0, 0xFFFF_FFFF]),
    ("s32", "i32", [-(2**31), 2**31 - 1]),
    ("u64", "i64", [0, 2**64 - 1]),
    ("s64", "i64", [-(2**63), 2**63 - 1]),
    ("f32", "f32", [0.0, -1.5, float("inf")]),
    ("f64", "f64", [0.1, -1e300]),
    ("string", "i32 i32", ["", "plain", "Grüße, 世界 🎉", "x" * BIG]),
    ("(list u8)", "i32 i32", [b"", bytes(range(256)), b"\xff" * BIG]),
    ("(list u32)", "i32 i32", [[], [1, 2, 0xFFFF_FFFF], list(range(BIG))]),
    ("(list f32)", "i32 i32", [[], [0.5, -2.0]]),
    ("(list string)", "i32 i32", [[], ["", "ä", "z" * 1000]]),
    ("(list (tuple string string))", "i32 i32", [[], [("a", ""), ("ß", "c")]]),
    ("(tuple (list u32) (list f32) f32)", "i32 i32 i32 i32 f32", [([], [], 1.0), ([3, 1], [0.75, 0.25], 0.0)]),
    ("(tuple u64 u32)", "i64 i32", [(2**63, 1)]),
    ("(option u64)", "i32 i64", [None, 0, 2**64 - 1]),
    ("(option string)", "i32 i32 i32", [None, "", "ö"]),
]


@pytest.mark.parametrize(("kind", "flat", "values"), CASES, ids=[case[0] for case in CASES])
def test_what_the_host_reads_and_writes_is_what_wasmtime_passes(kind: str, flat: str, values: list[Any]) -> None:
    guest = Guest(kind, flat)
    for value in values:
        returned = guest.go(value)
        assert guest.heard.pop() == value
        assert bytes(returned) == value if isinstance(value, bytes) else returned == value


def test_a_result_carries_its_case() -> None:
    guest = Guest("(result u32 (error string))", "i32 i32 i32")
    assert guest.go(7) == 7
    assert guest.go("refused: ü") == "refused: ü"
    assert guest.heard == [Result(True, 7), Result(False, "refused: ü")]


def test_a_result_without_a_value_carries_its_case() -> None:
    guest = Guest("(result (error string))", "i32 i32 i32")
    assert guest.go(None) is None
    assert guest.go("no") == "no"
    assert guest.heard == [Result(True, None), Result(False, "no")]


def test_a_record_is_a_tuple_in_the_order_of_its_fields() -> None:
    definition = '(record (field "name" string) (field "size" u32) (field "flags" (list string)))'
    guest = Guest("$t", "i32 i32 i32 i32 i32", definition)
    given = component.Record()
    vars(given).update(name="ä", size=9, flags=["x", ""])
    returned = guest.go(given)
    assert guest.heard == [("ä", 9, ["x", ""])]
    assert (returned.name, returned.size, returned.flags) == ("ä", 9, ["x", ""])


def test_an_enum_is_its_name() -> None:
    guest = Guest("$t", "i32", '(enum "red" "green" "blue")')
    assert guest.go("blue") == "blue"
    assert guest.heard == ["blue"]


def test_lists_are_written_from_arrays() -> None:
    guest = Guest("(tuple (list u32) (list f32) f32)", "i32 i32 i32 i32 f32")
    arrays = (np.arange(1000, dtype=np.uint32)[::-1], np.linspace(0, 1, 5, dtype=np.float32), 0.25)
    guest.answer = lambda _: arrays
    tokens, probabilities, rest = guest.go(([], [], 0.0))
    assert tokens == list(range(999, -1, -1))
    assert probabilities == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert rest == 0.25


def test_text_that_is_no_unicode_arrives_with_a_replacement() -> None:
    guest = Guest("string", "i32 i32")
    guest.answer = lambda _: "a\ud800b"
    assert guest.go("") == "a?b"


@pytest.mark.parametrize(
    ("kind", "flat", "wrong"),
    [
        ("string", "i32 i32", 7),
        ("(list u32)", "i32 i32", None),
        ("(list u32)", "i32 i32", ["x"]),
        ("(list string)", "i32 i32", ["fine", 3]),
        ("(tuple u64 u32)", "i64 i32", (1,)),
        ("(option string)", "i32 i32 i32", 5),
        ("u32", "i32", "x"),
    ],
)
def test_a_value_that_does_not_fit_traps_and_corrupts_nothing(kind: str, flat: str, wrong: Any) -> None:
    guest = Guest(kind, flat)
    first = {"string": "a", "(list u32)": [1], "(list string)": ["a"], "(tuple u64 u32)": (1, 2), "u32": 1}.get(kind)
    guest.answer = lambda _: wrong
    for _ in range(20):
        with pytest.raises(WasmtimeError, match="internal error in a host function"):
            guest.go(first)
    guest.answer = None
    assert guest.go(first) == first


def test_writers_leave_the_kind_alone_until_the_value_is_valid() -> None:
    scratch = (ctypes.c_uint64 * (SIZE // 8))()
    address = ctypes.addressof(scratch)
    numbers = Guest("(list u32)", "i32 i32").function.result
    for kind, wrong in [(wt.String(), 7), (wt.U32(), "x"), (numbers, None)]:
        with pytest.raises((TypeError, AttributeError)):
            writer(kind)(address, wrong)
        assert scratch[0] == 0


def test_unknown_types_are_refused() -> None:
    for convert in (reader, writer):
        with pytest.raises(ContractError, match="no conversion for Char"):
            convert(wt.Char())


def test_types_are_described_by_structure() -> None:
    kind = Guest("(tuple (list u32) (option u64) f32)", "i32 i32 i32 i64 f32").function.result
    assert describe(kind, iter(range(9))) == "tuple<list<u32>, option<u64>, f32>"
    assert describe(kind, iter(range(3))) == "tuple<list<u32>, ..., ...>"
    of_error, named = Guest("(result (error string))", "i32 i32 i32"), Guest("$t", "i32", '(enum "a" "b")')
    assert describe(of_error.function.result, iter(range(9))) == "result<_, string>"
    assert describe(named.function.result, iter(range(9))) == "enum{a, b}"
    case = Guest("$t", "i32 i32", '(variant (case "a" u32) (case "b"))').function.result
    assert describe(case, iter(range(9))) == "variant{a: u32, b: _}"


def test_the_self_test_passes_here() -> None:
    wasm_selftest.self_test(ENGINE, ways.current)


BROKEN = """
from pie_control.sandbox import engine, selftest, values
made = engine.new_engine()
values.{constant} = {value}
selftest.self_test(made)
"""


in_python = pytest.mark.parametrize("way", ["python"], indirect=True)
"""The process of its own has no other way."""


@in_python
@pytest.mark.parametrize(("constant", "value"), [("OF", 16), ("SIZE", 40), ("ENTRY_VALUE", 8), ("WORDS", 4)])
def test_the_self_test_notices_another_layout(constant: str, value: int) -> None:
    assert _self_test_with(constant, str(value)) != 0


@in_python
def test_the_self_test_passes_with_the_right_layout() -> None:
    assert _self_test_with("OF", "values.OF") == 0


def _self_test_with(constant: str, value: str) -> int:
    """Exit code of a process of its own, which a wrong layout may also crash."""
    script = BROKEN.format(constant=constant, value=value)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode
