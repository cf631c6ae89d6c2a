"""What wasmtime copies for one call is bounded, before it is converted."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import wasmtime
from wasmtime import component

import tests.helpers.wat as wat
from pie_control.calls.tokens import MOST_OF_CONTEXT as MAX_CONTEXT
from pie_control.sandbox import copy_bound
from pie_control.sandbox.engine import address_of, new_engine
from pie_control.sandbox.fibers import Instance, Step
from pie_control.sandbox.functions import MAX_TEXT_BYTES, HostFunction
from pie_control.sandbox.linker import LinkedComponent
from pie_control.sandbox.selftest import self_test
from tests.control.sandbox.test_fibers import Owner
from tests.helpers import ways

ENGINE = new_engine()
PAGES = 700
MOST = 1 << 40


@pytest.fixture(autouse=True)
def tested() -> Iterator[None]:
    self_test(ENGINE, ways.current)
    yield
    self_test(ENGINE, ways.current)


def outcome_of(run: str, name: str, most: dict[str, int]) -> tuple[str | None, list[Any]]:
    """The outcome of a component that calls one function, and what the function got."""
    heard: list[Any] = []

    def call(_owner: object, *arguments: Any) -> list[int] | None:
        heard.append(arguments[-1])
        return [] if name == "wait" else None

    compiled = component.Component(ENGINE, wat.inferlet(f"{run} (i32.const 0)", (name,), pages=PAGES))
    function = HostFunction(call, name == "wait", most)
    instance = Instance(
        LinkedComponent(ENGINE, compiled, lambda *_: function, {}, lambda *_: None, lambda: None, ways.current),
        256 << 20,
    )
    instance.owner = Owner()
    try:
        while instance.step() is not Step.DONE:
            pass
        return instance.outcome(), heard
    finally:
        instance.close()


def waiting_on(count: int) -> tuple[str | None, list[Any]]:
    run = f"(call $wait (i32.const 64) (i32.const {count}) (i32.const 32))"
    return outcome_of(run, "wait", {"futures": MOST})


def test_the_largest_list_and_the_largest_text_pass() -> None:
    outcome, heard = waiting_on(MAX_CONTEXT)
    assert (outcome, [len(one) for one in heard]) == (None, [MAX_CONTEXT])
    run = f"(call $send (i32.const 0) (i32.const 256) (i32.const {MAX_TEXT_BYTES}) (i32.const 16))"
    outcome, heard = outcome_of(run, "send", {"message": MOST})
    assert (outcome, [len(one) for one in heard]) == (None, [MAX_TEXT_BYTES])


@pytest.mark.parametrize("count", [2 * MAX_CONTEXT, 2_000_000])
def test_more_ends_the_guest_before_anything_is_converted(count: int) -> None:
    outcome, heard = waiting_on(count)
    assert heard == []
    assert "one call passed or returned more than 8388608 bytes" in (outcome or "")
    assert "pass less at a time" in (outcome or "")


def test_without_the_bound_more_is_converted() -> None:
    """So it is this bound that refuses."""
    copy_bound.use(None)
    outcome, heard = waiting_on(2 * MAX_CONTEXT)
    assert (outcome, [len(one) for one in heard]) == (None, [2 * MAX_CONTEXT])


def test_a_field_that_is_not_unique_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert copy_bound.find(ENGINE) is not None
    monkeypatch.setattr(copy_bound, "DEFAULT_BYTES", 0)  # as many other fields are
    assert copy_bound.find(ENGINE) is None


class Words(ctypes.Structure):
    """Is copied to the stack where it is passed to a function."""

    _fields_: ClassVar = [("words", ctypes.c_uint64 * 8192)]


def test_what_was_on_the_stack_before_is_no_field() -> None:
    offset, absolute = copy_bound.find(ENGINE), ctypes.CDLL(None).abs
    absolute.argtypes = (Words,)
    absolute(Words((copy_bound.DEFAULT_BYTES,) * 8192))
    assert len(copy_bound._places(ENGINE)) > 1
    absolute(Words((copy_bound.DEFAULT_BYTES,) * 8192))
    assert copy_bound.find(ENGINE) == offset is not None


def test_a_machine_without_the_field_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(copy_bound, "find", lambda _: 8)  # a field that bounds nothing
    monkeypatch.setattr(copy_bound, "bound_copies", lambda *_: None)
    self_test(ENGINE, ways.current)
    assert copy_bound._offset is None
    assert "please report this" in caplog.text


def test_the_default_is_that_of_new_stores() -> None:
    offset = copy_bound.find(ENGINE)
    assert offset is not None
    store = wasmtime.Store(ENGINE)
    context = address_of(store._context())
    copy_bound.bound_copies(context, offset=offset)
    assert copy_bound.find(ENGINE) == offset, "only that store is bounded"
