"""Component instances on wasmtime fibers: calling, suspending, preempting.

Theory of operation. An instance runs on a fiber of its own, inside `Instance.step`, which polls it: the guest runs
until it ends, suspends in a host function (`core.wait`, a WASI sleep) or is preempted by an epoch tick. No Python frame
is on the fiber's stack across a suspension: a suspending host function stores its arguments in the instance and
returns; at every poll wasmtime then asks a continuation whether there is a result. Only one instance runs at a time, so
host functions find theirs in `running`.

Rules that keep a guest from ending the host, each learned the hard way:
- a callback catches every exception; an error ends the guest with a trap and is stored in `Instance.fault`. This module
  does not use wasmtime-py's `add_func`, which keeps exceptions in a module global, where they reach the wrong guest;
- parameters and results of a call outlive its future; the future is deleted before the store;
- a guest that does not end is dropped with its future, which unwinds its fiber.

All of this holds for exactly one version of wasmtime, which `sandbox.engine` checks at start.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from enum import Enum
from itertools import islice
from typing import Any, Protocol, TypeVar

from wasmtime import _ffi as ffi

from ..errors import CallError
from .copy_bound import COPIED_BYTES, MESSAGE, bound_copies
from .engine import WASM_STACK_BYTES, c_function, take_message
from .values import SIZE, read_outcome

T = TypeVar("T")

SLICE_TICKS = 2
"""A guest that does not wait runs for one to two ticks. Up to the next tick alone would cut most of those that are
woken for a moment, and each cut has another one run in between, with the caches of the processor."""

MAX_TABLES = 20
MAX_TABLE_ELEMENTS = 100_000
MAX_CORE_INSTANCES = 100
"""What a store may have besides its memory; the Python guest needs 2 tables with fewer than 10,000 elements."""

STACK_EXHAUSTED = "call stack exhausted"
UNDEFINED, SHIM = "uninitialized element", "Shim"
"""A table has no function there; what has the calls of a component that `pie build` has made (`encoding`)."""
_FAULT = re.compile(r"memory fault at wasm address 0x([0-9a-f]+)")
BELOW_MEMORY = 0xF000_0000
"""Addresses from here on are negative: of a stack, which linkers put first into a memory, that has run over."""
NAMELESS = "<unknown>!<wasm function "
"""In frames of functions that have no names, as in modules that were stripped: nobody can read them."""
TRAP_FRAMES = 8
"""Number of guest frames in the message of a trap."""

_P, _N = ctypes.c_void_p, ctypes.c_size_t
_Continuation = ctypes.CFUNCTYPE(ctypes.c_bool, _P)

_set_epoch_deadline = c_function("wasmtime_context_set_epoch_deadline", None, _P, ctypes.c_uint64)
_yield_on_epoch = c_function("wasmtime_context_epoch_deadline_async_yield_and_update", _P, _P, ctypes.c_uint64)
_store_new = c_function("wasmtime_store_new", _P, _P, _P, _P)
_store_context = c_function("wasmtime_store_context", _P, _P)
_store_limiter = c_function("wasmtime_store_limiter", None, _P, *(ctypes.c_int64,) * 5)
_get_func = c_function("wasmtime_component_instance_get_func", ctypes.c_bool, _P, _P, _P, _P)
_future_delete = c_function("wasmtime_call_future_delete", None, _P)
_value_delete = c_function("wasmtime_component_val_delete", None, _P)
# These run guest code for up to two ticks, and release the GIL so that other threads can run.
_GIL_FREE = ctypes.CDLL(ffi.dll._name)
_instantiate = c_function("wasmtime_component_linker_instantiate_async", _P, _P, _P, _P, _P, _P, library=_GIL_FREE)
_call = c_function("wasmtime_component_func_call_async", _P, _P, _P, _P, _N, _P, _N, _P, library=_GIL_FREE)
_poll = c_function("wasmtime_call_future_poll", ctypes.c_bool, _P, library=_GIL_FREE)
_store_delete = c_function("wasmtime_store_delete", None, _P, library=_GIL_FREE)


class Suspend:
    """A suspending host function returns this while it has no result; `Instance.resume` supplies the result."""


SUSPEND = Suspend()


class Owner(Protocol):
    """The inferlet behind an instance: the first argument of every host function."""

    instance: Instance


class Linked(Protocol):
    """A component with its imports defined: `LinkedComponent` is one."""

    engine_address: int
    linker_address: int
    component_address: int
    run_address: int
    wake: Callable[[], None]


class Step(Enum):
    """How a step of an instance ended."""

    DONE = "done"
    WAITING = "waiting"
    PREEMPTED = "preempted"


def _explain_trap(message: str) -> str:
    """The cause first, then the innermost frames of the guest."""
    backtrace, _, cause = message.partition("Caused by:")
    if MESSAGE in message:
        cause = (
            f"one call passed or returned more than {COPIED_BYTES} bytes, where a number in a list counts as about 50: "
            "pass less at a time"
        )
    elif STACK_EXHAUSTED in cause:
        cause = (
            f"RecursionError: its calls are nested deeper than a guest's stack of {WASM_STACK_BYTES >> 10} KiB holds, "
            "which no program can catch: nest less, or go through it with a list of what is left to do"
        )
    elif (found := _FAULT.search(cause)) and int(found[1], 16) >= BELOW_MEMORY:
        cause = (
            "it read or wrote below its memory, as a program in Rust or C does whose calls are nested deeper than its "
            "own stack holds (1 MiB in Rust, unless the linker is told otherwise): nest less, or keep large values on "
            "the heap"
        )
    elif UNDEFINED in cause and f"{SHIM}!" in backtrace:
        cause = (
            "its start function makes a call, and there are none before the module has started: export it as "
            "`_initialize` in place of that, which runs before `run` (AssemblyScript: `--exportStart _initialize`)"
        )
    if not cause:
        return message
    frames = (line.strip() for line in backtrace.splitlines()[1:] if NAMELESS not in line)
    told = islice(filter(None, frames), TRAP_FRAMES)
    return "\n  ".join([f"the program trapped: {cause.strip().removeprefix('wasm trap: ')}", *told])


running: list[Any] = [None]
"""The instance that runs now, or None: in a process, one thread runs all guests."""


class Instance:
    """One instance of a component, on its fiber. `step` until DONE, then `outcome`; `close` at any time."""

    __slots__ = (
        "_call_error",
        "_context",
        "_future",
        "_instance",
        "_linked",
        "_refuse",
        "_result",
        "_result_address",
        "_resumed",
        "_run",
        "_started",
        "_store",
        "_value",
        "_write",
        "fault",
        "grown",
        "owner",
        "waiting",
    )

    def __init__(self, linked: Linked, memory_bytes: int) -> None:
        self.owner: Owner | None = None
        self.fault: str | None = None
        self.grown = 0  # bytes, by those that had it before its owner
        self.waiting = False
        self._linked = linked
        self._started = False
        self._resumed = False
        self._value: Any = None
        self._write: Callable[[int, Any], None] | None = None
        self._refuse: Callable[[int, CallError], None] | None = None
        self._result_address = 0
        # What wasmtime-py does for these takes as long as the rest of this function.
        self._store = _store_new(linked.engine_address, None, None)
        _store_limiter(self._store, memory_bytes, MAX_TABLE_ELEMENTS, MAX_CORE_INSTANCES, MAX_TABLES, 1)
        self._context: int = _store_context(self._store)
        bound_copies(self._context)
        _set_epoch_deadline(self._context, 1)
        _yield_on_epoch(self._context, 1)
        self._instance = ffi.wasmtime_component_instance_t()
        self._result = (ctypes.c_uint64 * (SIZE // 8))()
        self._call_error = _P()
        self._future: int | None = _instantiate(
            linked.linker_address,
            self._context,
            linked.component_address,
            ctypes.addressof(self._instance),
            ctypes.addressof(self._call_error),
        )

    @property
    def context(self) -> int:
        """The store's context, which host resources need."""
        return self._context

    def instantiate(self) -> Step:
        """Instantiates without calling `run`: DONE when the instance is ready to start. Its start code may run here."""
        if self._started or not self._poll_once():
            return Step.DONE if self._started else Step.PREEMPTED
        self._started = True
        if not self._failed():
            self._run = ffi.wasmtime_component_func_t()
            run = ctypes.addressof(self._run)
            _get_func(ctypes.addressof(self._instance), self._context, self._linked.run_address, run)
            self._future = _call(
                run, self._context, 0, 0, ctypes.addressof(self._result), 1,
                ctypes.addressof(self._call_error),
            )  # fmt: skip
        return Step.DONE

    def step(self) -> Step:
        """Runs the guest until it ends, waits or is preempted."""
        if not self._started and self.instantiate() is Step.PREEMPTED:
            return self._pending()
        if self._future is None or self._poll_once():
            return Step.DONE
        return self._pending()

    def _pending(self) -> Step:
        return Step.WAITING if self.waiting and not self._resumed else Step.PREEMPTED

    def _poll_once(self) -> bool:
        self._linked.wake()
        _set_epoch_deadline(self._context, SLICE_TICKS)
        running[0] = self
        done: bool = _poll(self._future)
        running[0] = None
        if done:
            _future_delete(self._future)
            self._future = None
        return done

    def _failed(self) -> bool:
        if self._call_error.value:
            message = _explain_trap(take_message(self._call_error.value))
            self._call_error.value = None
            if self.fault is None:
                self.fault = message
        return self.fault is not None

    def outcome(self) -> str | None:
        """For an instance that is DONE: None if `run` succeeded, else its error or the trap's message."""
        if self._failed():
            return self.fault
        result = read_outcome(ctypes.addressof(self._result))
        _value_delete(ctypes.addressof(self._result))
        return None if result.is_ok else (result.value or "the inferlet returned an error without a message")

    def resume(self, value: Any) -> None:
        """Gives the host function that suspended the guest its result; the next step continues after that call."""
        assert self.waiting, "resume of an instance that does not wait"
        self._value = value
        self._resumed = True

    def answer(self, function: Callable[[T], Any], argument: T) -> None:
        """Resumes with the value that the function returns, or the CallError that it raises. Any other error ends the
        guest."""
        try:
            value = function(argument)
        except CallError as error:
            self.refuse(error)
        except BaseException as error:
            self.end_with(f"internal error in a host function: {error!r}")
        else:
            self.resume(value)

    def refuse(self, error: CallError) -> None:
        """Resumes with an error; ends the guest if its call knows no errors."""
        if self._refuse is None:
            self.end_with(str(error))
        else:
            self._write = self._refuse
            self.resume(error)

    def end_with(self, fault: str) -> None:
        """Ends a guest that is suspended, or is about to be: its call gives nothing, which traps."""
        if self.fault is None:
            self.fault = fault
        self._write = None
        self.resume(None)

    def close(self) -> None:
        """Ends the guest in any state and frees it. Idempotent. Do not call it within the instance's own step."""
        before = running[0]
        assert before is not self, "an instance is closed from within its own step"
        if self._future is not None:
            running[0] = self
            _future_delete(self._future)
            running[0] = before
            self._future = None
        if self._call_error.value:
            take_message(self._call_error.value)
            self._call_error.value = None
        self._started = True
        if self._store:
            _store_delete(self._store)
            self._store = 0
        self.owner = None  # which leads back here

    # ---- for host functions, while the guest is in one ----

    def expect(
        self,
        write: Callable[[int, Any], None] | None,
        refuse: Callable[[int, CallError], None] | None,
        address: int,
    ) -> None:
        """Suspends the guest. `resume` supplies a value, which `write` stores at the address; `answer` may call
        `refuse` instead. None: the function has no result, or its type knows no errors."""
        self._write, self._refuse, self._result_address = write, refuse, address
        self.waiting, self._resumed = True, False

    def forget_result(self) -> None:
        """Stops waiting, because the host function failed."""
        self._write, self._resumed = None, True


def continue_guest(_env: int | None) -> bool:
    """Whether the suspended guest that runs has its result, which is written then."""
    instance: Instance = running[0]
    if not instance._resumed:
        return False
    instance._resumed = instance.waiting = False
    try:
        if instance._write is not None:
            instance._write(instance._result_address, instance._value)
    except BaseException as error:
        instance.fault = f"internal error in a host function: {error!r}"
    instance._value = None
    return True


_CALLBACK = _Continuation(continue_guest)
CONTINUATION = ctypes.cast(_CALLBACK, _P).value or 0
"""Address of the function that wasmtime asks whether a suspended guest can continue."""
