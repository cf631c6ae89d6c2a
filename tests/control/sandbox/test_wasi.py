"""The part of WASI that guests get."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import pytest
from wasmtime import component

import tests.helpers.wat as wat
from pie_control.sandbox import fibers, wasi
from pie_control.sandbox.engine import LinkError, new_engine
from pie_control.sandbox.fibers import SUSPEND
from pie_control.sandbox.linker import LinkedComponent
from pie_control.sandbox.values import OwnedResource, Result
from pie_control.sandbox.wasi import FUNCTIONS, RESOURCES, WasiState, drop_resource
from tests.helpers import ways

ENGINE = new_engine()
FAR = 10**12


class Instance:
    context = 7


class Owner:
    """What an inferlet offers to WASI."""

    instance: Any = Instance()

    def __init__(self) -> None:
        self.wasi = WasiState()
        self.output: list[tuple[str, bytes]] = []
        self.sleeps: list[tuple[int, Any]] = []

    def write_output(self, stream: str, data: bytes) -> None:
        self.output.append((stream, data))

    def sleep_until(self, deadline_ns: int, value: object) -> None:
        self.sleeps.append((deadline_ns, value))


def call(owner: Owner, interface: str, name: str, *arguments: Any) -> Any:
    return FUNCTIONS[f"wasi:{interface}", name].call(owner, *arguments)


def timer(owner: Owner, instant: int) -> int:
    made = call(owner, "clocks/monotonic-clock", "subscribe-instant", instant)
    assert isinstance(made, OwnedResource)
    assert (made.context, made.resource_type) == (7, RESOURCES["pollable"])
    return made.number


def test_clocks_go_on() -> None:
    owner = Owner()
    before = call(owner, "clocks/monotonic-clock", "now")
    assert before <= time.monotonic_ns()
    seconds, nanoseconds = call(owner, "clocks/wall-clock", "now")
    assert abs(seconds + nanoseconds / 1e9 - time.time()) < 60
    assert 0 <= nanoseconds < 10**9


def test_random_numbers_differ_and_are_bounded() -> None:
    owner = Owner()
    first, second = (call(owner, "random/random", "get-random-bytes", 32) for _ in range(2))
    assert len(first) == 32
    assert first != second
    with pytest.raises(Exception, match="random bytes in one call"):
        call(owner, "random/random", "get-random-bytes", 1 << 30)


def test_a_sleep_suspends_until_its_deadline() -> None:
    owner = Owner()
    deadline = time.monotonic_ns() + FAR
    number = timer(owner, deadline)
    assert call(owner, "io/poll", "[method]pollable.block", number) is SUSPEND
    assert owner.sleeps == [(deadline, None)]


def test_a_sleep_that_is_over_does_not_suspend() -> None:
    owner = Owner()
    number = timer(owner, time.monotonic_ns() - 1)
    assert call(owner, "io/poll", "[method]pollable.block", number) is None
    assert call(owner, "io/poll", "[method]pollable.block", wasi.READY) is None
    assert not owner.sleeps


def test_a_duration_counts_from_now() -> None:
    owner = Owner()
    before = time.monotonic_ns()
    made = call(owner, "clocks/monotonic-clock", "subscribe-duration", FAR)
    assert before + FAR <= owner.wasi.deadlines[made.number] <= time.monotonic_ns() + FAR


def test_poll_answers_with_all_that_are_ready() -> None:
    owner = Owner()
    late, over = timer(owner, time.monotonic_ns() + FAR), timer(owner, 0)
    assert call(owner, "io/poll", "poll", [late, over, wasi.READY]) == [1, 2]


def test_poll_sleeps_until_the_first_is_ready() -> None:
    owner = Owner()
    soon = time.monotonic_ns() + FAR
    late, first = timer(owner, soon + FAR), timer(owner, soon)
    assert call(owner, "io/poll", "poll", [late, first]) is SUSPEND
    assert owner.sleeps == [(soon, [1])]


POLL_THREE = """
  (i32.store (i32.const 1000) (call $sleep (i64.const 3600000000000)))
  (i32.store (i32.const 1004) (call $sleep (i64.const 1000000)))
  (i32.store (i32.const 1008) (call $sleep (i64.const 7200000000000)))
  (call $poll (i32.const 1000) (i32.const 3) (i32.const 16))
  (if (i32.ne (i32.load (i32.const 20)) (i32.const 1)) (then unreachable))
  (if (i32.ne (i32.load (i32.load (i32.const 16))) (i32.const 1)) (then unreachable))
  (call $drop (i32.load (i32.const 1000)))
  (call $drop (i32.load (i32.const 1004)))
  (call $drop (i32.load (i32.const 1008)))
  (i32.const 0)"""
"""Polls three timers, of which the second is first."""

POLL_MANY = f"""
  (local $i i32) (local $timer i32)
  (local.set $timer (call $sleep (i64.const 0)))
  (loop $next
    (i32.store (i32.add (i32.const 65536) (i32.mul (local.get $i) (i32.const 4))) (local.get $timer))
    (local.set $i (i32.add (local.get $i) (i32.const 1)))
    (br_if $next (i32.le_u (local.get $i) (i32.const {wasi.MAX_POLLED}))))
  (call $poll (i32.const 65536) (i32.const {wasi.MAX_POLLED + 1}) (i32.const 16)) (i32.const 0)"""


def linked(text: str | bytes) -> LinkedComponent:
    compiled = component.Component(ENGINE, text)
    find = lambda interface, name: FUNCTIONS.get((interface.partition("@")[0], name))  # noqa: E731
    return LinkedComponent(ENGINE, compiled, find, RESOURCES, drop_resource, lambda: None, ways.current)


@pytest.mark.parametrize(
    ("interface", "name", "kind"),
    [
        ("clocks/monotonic-clock", "now", ""),
        ("clocks/monotonic-clock", "subscribe-duration", '(param "when" f64)'),
        ("random/random", "get-random-bytes", "(result (list u8))"),
        ("random/insecure", "get-insecure-random-bytes", '(param "len" u64)'),
        ("sockets/tcp-create-socket", "create-tcp-socket", '(param "x" (tuple u32 u32))'),  # or a million of these
    ],
)
def test_what_is_imported_as_another_type_is_refused(interface: str, name: str, kind: str) -> None:
    text = f'(component (import "wasi:{interface}@0.2.0" (instance (export "{name}" (func {kind})))))'
    with pytest.raises(LinkError, match=rf"imports `{name}` of wasi:{interface}@0.2.0 as func\(.*this server has func"):
        linked(text)


def polling(run: str) -> tuple[str | None, WasiState]:
    """Runs a component that polls, and the time for which it sleeps."""
    instance = fibers.Instance(linked(wat.polling(run)), 64 << 20)
    owner = Owner()
    instance.owner, owner.instance = owner, instance
    while instance.step() is not fibers.Step.DONE:
        if owner.sleeps:
            instance.resume(owner.sleeps.pop()[1])
    try:
        return instance.outcome(), owner.wasi
    finally:
        instance.close()


def test_a_component_goes_when_nobody_has_it() -> None:
    """wasmtime keeps the function that drops a resource until the linker goes, and that kept the linker: components
    that import resources, which those of WASI do, stayed in the memory of hosts."""
    one = linked(wat.polling("(i32.const 0)"))
    fibers.Instance(one, 64 << 20).close()
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


def test_a_component_polls_several_timers() -> None:
    outcome, state = polling(POLL_THREE)
    assert outcome is None
    assert state.deadlines == {}


def test_a_poll_of_too_many_tells_the_bound() -> None:
    outcome, _ = polling(POLL_MANY)
    assert (outcome or "").startswith(f"`in` has {wasi.MAX_POLLED + 1} items; one call takes {wasi.MAX_POLLED}")


def test_poll_of_nothing_is_a_trap() -> None:
    with pytest.raises(Exception, match="poll of no pollables"):
        call(Owner(), "io/poll", "poll", [])


def test_timers_are_bounded_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasi, "MAX_TIMERS", 2)
    owner = Owner()
    first, _ = timer(owner, 0), timer(owner, 0)
    with pytest.raises(Exception, match="more than 2 timers"):
        timer(owner, 0)
    drop_resource(owner, RESOURCES["output-stream"], first)
    drop_resource(owner, RESOURCES["pollable"], first)
    drop_resource(owner, RESOURCES["pollable"], first)
    assert timer(owner, 0) != first


@pytest.mark.parametrize(("name", "stream"), [("stdout", "stdout"), ("stderr", "stderr")])
def test_output_goes_to_the_log_of_its_stream(name: str, stream: str) -> None:
    owner = Owner()
    handle = call(owner, f"cli/{name}", f"get-{name}").number
    assert call(owner, "io/streams", "[method]output-stream.check-write", handle).value > 0
    assert call(owner, "io/streams", "[method]output-stream.blocking-write-and-flush", handle, b"text") == Result(
        True, None
    )
    assert owner.output == [(stream, b"text")]


def test_input_is_at_its_end() -> None:
    closed = call(Owner(), "io/streams", "[method]input-stream.blocking-read", wasi.STDIN, 10)
    assert closed == Result(False, ("closed", None))


def test_there_is_nothing_outside() -> None:
    owner = Owner()
    assert call(owner, "cli/environment", "get-environment") == []
    assert call(owner, "cli/environment", "get-arguments") == []
    assert call(owner, "filesystem/preopens", "get-directories") == []
    assert call(owner, "sockets/tcp-create-socket", "create-tcp-socket", 0) == Result(False, wasi.ACCESS_DENIED)


@pytest.mark.parametrize(("is_ok", "code"), [(True, 0), (False, 1)])
def test_an_exit_ends_the_guest(is_ok: bool, code: int) -> None:
    with pytest.raises(Exception, match=f"exited with code {code}"):
        call(Owner(), "cli/exit", "exit", Result(is_ok, None))


def test_only_sleeping_suspends() -> None:
    assert {name for (_, name), function in FUNCTIONS.items() if function.suspends} == {
        "[method]pollable.block",
        "poll",
    }
