"""Instances on fibers: preemption, suspension, ending, and host functions that fail."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import wasmtime
from wasmtime import component

import tests.helpers.wat as wat
from pie_control.errors import CallError, NotFound
from pie_control.sandbox import engine as wasm_engine
from pie_control.sandbox.engine import Ticker
from pie_control.sandbox.fibers import SUSPEND, Instance, Step
from pie_control.sandbox.functions import MAX_ERROR_BYTES, MAX_ITEMS, MAX_TEXT_BYTES, HostFunction, trap
from pie_control.sandbox.linker import LinkedComponent
from pie_control.sandbox.values import MAX_OUTCOME_BYTES
from tests.helpers import ways

ENGINE = wasm_engine.new_engine()
MEMORY = 64 << 20
MOST_STEPS = 2000
ERRORS = CallError.__subclasses__()
WAIT_ONCE = "(call $wait (i32.const 64) (i32.const 1) (i32.const 32)) (i32.const 0)"


class Owner:
    """Who makes the calls."""

    instance: Instance

    def __init__(self) -> None:
        self.calls: list[Any] = []


def linked(
    run: str,
    functions: tuple[str, ...] = (),
    calls: dict[str, Any] | None = None,
    *,
    wake: Callable[[], None] = lambda: None,
    **more: Any,
) -> LinkedComponent:
    core = f"pie:inferlet/core@{more.get('version', wat.VERSION)}"
    found = {(core, name): HostFunction(call, suspends=name == "wait") for name, call in (calls or {}).items()}
    compiled = component.Component(ENGINE, wat.inferlet(run, functions, **more))
    return LinkedComponent(ENGINE, compiled, lambda *name: found.get(name), {}, lambda *_: None, wake, ways.current)


def started(*arguments: Any, **more: Any) -> Instance:
    instance = Instance(linked(*arguments, **more), MEMORY)
    instance.owner = Owner()
    return instance


def step_until(instance: Instance, wanted: Step) -> None:
    for _ in range(MOST_STEPS):
        if instance.step() is wanted:
            return
    raise AssertionError(f"not {wanted} after {MOST_STEPS} steps")


def outcome_of(instance: Instance) -> str | None:
    step_until(instance, Step.DONE)
    try:
        return instance.outcome()
    finally:
        instance.close()


def suspended(_owner: Owner, *_arguments: object) -> Any:
    return SUSPEND


@pytest.fixture
def ticker() -> Iterator[Ticker]:
    ticker = Ticker(ENGINE)
    yield ticker
    ticker.close()


def test_run_that_returns_is_done() -> None:
    assert outcome_of(started(wat.SUCCESS)) is None


def test_an_error_returned_is_the_outcome() -> None:
    run = (
        "(i32.store8 (i32.const 0) (i32.const 1)) (i32.store (i32.const 4) (i32.const 256))"
        "(i32.store (i32.const 8) (i32.const 5)) (i32.const 0)"
    )
    assert outcome_of(started(run, data="wrong")) == "wrong"


def test_a_trap_tells_cause_and_frames() -> None:
    message = outcome_of(started("unreachable")) or ""
    assert message.startswith("the program trapped: wasm `unreachable`")
    assert "Main!" in message


def test_a_suspended_guest_goes_on_with_the_value() -> None:
    instance = started(WAIT_ONCE, ("wait",), {"wait": suspended})
    step_until(instance, Step.WAITING)
    assert instance.waiting
    assert instance.step() is Step.WAITING
    instance.resume([7])
    assert outcome_of(instance) is None


def test_a_suspending_function_with_its_value_at_hand_does_not_suspend() -> None:
    def at_hand(owner: Owner, futures: list[int]) -> list[int]:
        owner.calls.append(futures)
        return futures

    instance = started(WAIT_ONCE, ("wait",), {"wait": at_hand})
    owner: Any = instance.owner
    assert outcome_of(instance) is None
    assert owner.calls == [[0]]


def test_a_guest_may_suspend_while_it_is_instantiated() -> None:
    start = "(call $wait (i32.const 64) (i32.const 1) (i32.const 32))"
    instance = started(wat.SUCCESS, ("wait",), {"wait": suspended}, start=start)
    step_until(instance, Step.WAITING)
    instance.resume([])
    assert outcome_of(instance) is None


@pytest.mark.parametrize("where", ["run", "start"])
def test_a_loop_is_preempted_and_can_be_closed(where: str, ticker: Ticker) -> None:
    loop = {"run": (wat.FOREVER + wat.SUCCESS, ""), "start": (wat.SUCCESS, wat.FOREVER)}
    run, start = loop[where]
    instance = started(run, start=start, wake=ticker.wake)
    for _ in range(3):
        assert instance.step() is Step.PREEMPTED
    instance.close()


def test_an_instance_that_never_ran_can_be_closed() -> None:
    instance = started(wat.SUCCESS)
    instance.close()
    instance.close()


def test_a_waiting_instance_can_be_closed() -> None:
    instance = started(WAIT_ONCE, ("wait",), {"wait": suspended})
    step_until(instance, Step.WAITING)
    instance.close()
    gc.collect()
    assert outcome_of(started(wat.SUCCESS)) is None


def test_another_instance_is_closed_from_within_a_step() -> None:
    waiting = started(WAIT_ONCE, ("wait",), {"wait": suspended})
    step_until(waiting, Step.WAITING)
    owners: list[Any] = []

    def closes(owner: Owner, _futures: list[int]) -> list[int]:
        waiting.close()
        return []

    def notes(owner: Owner, _source: int) -> int:
        owners.append(owner)
        return 1

    run = "(call $wait (i32.const 64) (i32.const 1) (i32.const 32))"
    run += " (call $receive (i32.const 0) (i32.const 16)) (i32.const 0)"
    instance = started(run, ("wait", "receive"), {"wait": closes, "receive": notes})
    owner = instance.owner
    assert outcome_of(instance) is None
    assert owners == [owner]


def raises(error: BaseException) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize("function", ["receive", "wait"])
@pytest.mark.parametrize("error", [ValueError("of ours"), KeyboardInterrupt("of ours"), RecursionError("of ours")])
def test_an_exception_of_the_host_ends_the_guest_alone(function: str, error: BaseException) -> None:
    run = {"receive": "(call $receive (i32.const 0) (i32.const 16)) (i32.const 0)", "wait": WAIT_ONCE}[function]
    message = outcome_of(started(run, (function,), {function: raises(error)})) or ""
    assert message == f"internal error in a host function: {error!r}"
    assert outcome_of(started(wat.SUCCESS)) is None


@pytest.mark.parametrize("function", ["receive", "wait"])
def test_a_trap_of_the_host_is_the_outcome(function: str) -> None:
    run = {"receive": "(call $receive (i32.const 0) (i32.const 16)) (i32.const 0)", "wait": WAIT_ONCE}[function]
    instance = started(run, (function,), {function: lambda *_: trap("not like this: \0 ü")})
    assert outcome_of(instance) == "not like this: \0 ü"


@pytest.mark.parametrize(("address", "is_below"), [(-400, True), (-(64 << 20), True), (1 << 30, False)])
def test_a_stack_that_runs_over_into_what_is_below_memory_is_told(address: int, is_below: bool) -> None:
    message = outcome_of(started(f"(i32.store (i32.const {address}) (i32.const 1)) (i32.const 0)")) or ""
    assert message.startswith("the program trapped: ")
    assert ("nested deeper than its own stack holds" in message) == is_below


def test_a_value_that_does_not_fit_ends_the_guest() -> None:
    at_once = started(WAIT_ONCE, ("wait",), {"wait": lambda *_: "no list"})
    assert "internal error in a host function" in (outcome_of(at_once) or "")
    later = started(WAIT_ONCE, ("wait",), {"wait": suspended})
    step_until(later, Step.WAITING)
    later.resume(object())
    assert "internal error in a host function" in (outcome_of(later) or "")


FAILED_TEXT = """(i32.store8 (i32.const 0) (i32.const 1)) (i32.store (i32.const 4) (i32.load (i32.const {text})))
      (i32.store (i32.const 8) (i32.load (i32.add (i32.const {text}) (i32.const 4)))) (i32.const 0)"""
"""Ends with the text whose address and length are found there as error."""


@pytest.mark.parametrize("part", ["code", "message"])
@pytest.mark.parametrize("error", ERRORS, ids=[error.code for error in ERRORS])
def test_a_refused_call_tells_the_guest_its_code_and_message(error: type[CallError], part: str) -> None:
    run = f"""(call $receive (i32.const 0) (i32.const 16))
      (if (i32.ne (i32.load8_u (i32.const 16)) (i32.const 1)) (then unreachable))
      {FAILED_TEXT.format(text={"code": 20, "message": 28}[part])}"""
    said = outcome_of(started(run, ("receive",), {"receive": raises(error("because, ü"))}))
    assert said == {"code": error.code, "message": "because, ü"}[part]


def test_a_function_that_the_host_lacks_traps_with_its_name() -> None:
    instance = started("(call $receive (i32.const 0) (i32.const 16)) (i32.const 0)", ("receive",))
    assert outcome_of(instance) == "`receive` of pie:inferlet/core@0.3.0 is not available to inferlets"


def test_memory_cannot_grow_beyond_the_limit() -> None:
    # grows by 1 MiB until refused, then says how many pages it has: as an error of that length
    run = """(loop $more (br_if $more (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
      (i32.store8 (i32.const 0) (i32.const 1)) (i32.store (i32.const 4) (i32.const 256))
      (i32.store (i32.const 8) (memory.size)) (i32.const 0)"""
    pages = len(outcome_of(started(run, data="x")) or "")
    assert MEMORY // 65536 - 16 < pages <= MEMORY // 65536


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("(core module $M2 (memory 1)) (core instance (instantiate $M2))", "memory count"),
        ("(core module $T (table 200000 funcref)) (core instance (instantiate $T))", "table"),
    ],
)
def test_a_store_allows_no_more_than_one_memory_and_small_tables(extra: str, message: str) -> None:
    assert message in (outcome_of(started(wat.SUCCESS, extra=extra)) or "")


def test_shared_memory_is_refused() -> None:
    with pytest.raises(Exception, match="threads must be enabled"):
        linked(wat.SUCCESS, extra="(core module (memory 1 2 shared))")


def test_a_list_beyond_all_bounds_does_not_reach_the_host() -> None:
    run = """(drop (memory.grow (i32.const 900)))
      (call $wait (i32.const 64) (i32.const 14000000) (i32.const 32)) (i32.const 0)"""
    calls: list[int] = []
    instance = started(run, ("wait",), {"wait": lambda _, futures: calls.append(len(futures))})
    assert "pass less at a time" in (outcome_of(instance) or "")
    assert not calls


def test_the_ticker_rests_and_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasm_engine, "TICK_SECONDS", 0.0001)
    ticks: list[int] = []

    class CountingEngine(wasmtime.Engine):
        def increment_epoch(self) -> None:
            ticks.append(1)

    ticker = Ticker(CountingEngine())
    try:
        ticker.wake()
        before = _settled(ticks)
        assert before >= Ticker.REST_AFTER_TICKS
        ticker.wake()
        assert _settled(ticks) >= before + Ticker.REST_AFTER_TICKS
    finally:
        ticker.close()
        ticker.close()


def _settled(ticks: list[int]) -> int:
    """Number of ticks when no more come for a while."""
    count, same = -1, 0
    while same < 5:  # the thread may have to wait for the processor
        same = same + 1 if count == len(ticks) else 0
        count = len(ticks)
        time.sleep(0.05)
    return count


def test_another_wasmtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasm_engine, "installed_version", lambda: "1.2.3")
    with pytest.raises(wasm_engine.LinkError, match=r"wasmtime 1\.2\.3 is installed"):
        wasm_engine.new_engine()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(component)", "does not export the function `run"),
        (
            '(component (core module $m (func (export "run") (result i32) (i32.const 0)))'
            "(core instance $i (instantiate $m))"
            '(func (export "run") (result u32) (canon lift (core func $i "run"))))',
            r"a type other than .* func\(\) -> u32",
        ),
        (
            '(component (core module $m (memory (export "m") 1) (func (export "run") (result i32) (i32.const 0)))'
            '(core instance $i (instantiate $m)) (func (export "run") (result (result (error (tuple u32 string))))'
            '(canon lift (core func $i "run") (memory (core memory $i "m")))))',
            r"a type other than .* func\(\) -> result<_, tuple<u32, string>>",
        ),
        ('(component (import "loose" (func)))', "imports 'loose'"),
    ],
)
def test_a_component_of_another_shape_is_refused(text: str, message: str) -> None:
    with pytest.raises(wasm_engine.LinkError, match=message):
        LinkedComponent(
            ENGINE, component.Component(ENGINE, text), lambda *_: None, {}, lambda *_: None, lambda: None, ways.current
        )


# ---- how much a guest may pass ----

SEND = "(call $send (i32.const 0) (i32.const 256) (i32.const {size}) (i32.const 16))"
TELL = (  # the message of the error of `send` as the error of `run`
    "(i32.store8 (i32.const 0) (i32.load8_u (i32.const 16))) (i32.store (i32.const 4) (i32.load (i32.const 28)))"
    "(i32.store (i32.const 8) (i32.load (i32.const 32))) (i32.const 0)"
)


def sending(size: int, send: Callable[..., Any], **more: Any) -> Instance:
    instance = Instance(linked(SEND.format(size=size) + TELL, ("send",), {"send": send}, pages=256, **more), MEMORY)
    instance.owner = Owner()
    return instance


def test_a_text_that_is_too_long_is_refused_before_it_is_converted() -> None:
    heard: list[int] = []
    send = lambda _owner, _to, text: heard.append(len(text))  # noqa: E731
    assert outcome_of(sending(MAX_TEXT_BYTES, send)) is None
    message = outcome_of(sending(MAX_TEXT_BYTES + 1, send))
    assert message == f"`message` has {MAX_TEXT_BYTES + 1} bytes; one call takes {MAX_TEXT_BYTES}: pass less at a time"
    assert heard == [MAX_TEXT_BYTES]


def test_a_long_list_where_no_error_is_possible_ends_the_guest_with_the_same_words() -> None:
    run = f"(call $wait (i32.const 64) (i32.const {MAX_ITEMS + 1}) (i32.const 32)) (i32.const 0)"
    message = outcome_of(started(run, ("wait",), {"wait": suspended})) or ""
    assert message == f"`futures` has {MAX_ITEMS + 1} items; one call takes {MAX_ITEMS}: pass less at a time"


@pytest.mark.parametrize("size", [3, 4])
def test_a_suspending_function_refuses_with_an_error_what_is_too_long(size: int) -> None:
    compiled = component.Component(ENGINE, wat.inferlet(SEND.format(size=size) + TELL, ("send",)))
    send = HostFunction(lambda *_: None, True, {"message": 3})
    linker = LinkedComponent(ENGINE, compiled, lambda *_: send, {}, lambda *_: None, lambda: None, ways.current)
    instance = Instance(linker, MEMORY)
    instance.owner = Owner()
    told = "`message` has 4 bytes; one call takes 3: pass less at a time"
    assert outcome_of(instance) == (told if size > 3 else None)


@pytest.mark.parametrize("later", [False, True])
def test_a_suspending_function_refuses_with_an_error_now_or_later(later: bool) -> None:
    send = HostFunction(suspended if later else raises(NotFound("no, ü")), True)
    compiled = component.Component(ENGINE, wat.inferlet(SEND.format(size=1) + TELL, ("send",)))
    linker = LinkedComponent(ENGINE, compiled, lambda *_: send, {}, lambda *_: None, lambda: None, ways.current)
    instance = Instance(linker, MEMORY)
    instance.owner = Owner()
    if later:
        step_until(instance, Step.WAITING)
        instance.answer(raises(NotFound("no, ü")), None)
    assert outcome_of(instance) == "no, ü"


def test_the_bound_of_a_parameter_may_be_another() -> None:
    compiled = component.Component(ENGINE, wat.inferlet(WAIT_ONCE.replace("(i32.const 1)", "(i32.const 3)"), ("wait",)))
    for most, refused in ((2, True), (3, False)):
        wait = HostFunction(lambda _, given: given, True, {"futures": most})
        find = lambda _interface, _name, found=wait: found  # noqa: E731
        instance = Instance(
            LinkedComponent(ENGINE, compiled, find, {}, lambda *_: None, lambda: None, ways.current), MEMORY
        )
        instance.owner = Owner()
        assert (outcome_of(instance) is not None) == refused


def test_an_error_that_quotes_much_is_cut() -> None:
    message = outcome_of(sending(1, raises(NotFound("x" * 10_000_000 + "!")))) or ""
    assert len(message) <= MAX_ERROR_BYTES
    assert message.startswith("xxx")
    assert message.endswith("x!")
    assert "10000001 characters" in message


def test_of_a_huge_error_only_the_ends_are_read() -> None:
    size = MAX_OUTCOME_BYTES + 1_000_000
    run = (
        "(i32.store8 (i32.const 0) (i32.const 1)) (i32.store (i32.const 4) (i32.const 256))"
        f"(i32.store (i32.const 8) (i32.const {size}))"
        f"(memory.fill (i32.const 256) (i32.const 120) (i32.const {size}))"
        f"(i32.store8 (i32.const {255 + size}) (i32.const 33)) (i32.const 0)"
    )
    message = outcome_of(started(run, pages=256)) or ""
    assert len(message) < MAX_OUTCOME_BYTES + 100
    assert message.startswith("xxx")
    assert message.endswith("xx!")
    assert f"{size} bytes" in message
