"""Component instances on wasmtime fibers: linking, calling, suspending, preempting.

Theory of operation. An instance runs on a fiber of its own, inside `Instance.step`, which polls it: the guest runs
until it ends, suspends in a host function (`core.wait`, a WASI sleep) or an epoch tick takes the processor from it.
Nothing of Python is on the fiber's stack across a suspension: a suspending host function leaves its arguments on the
instance and returns; wasmtime then asks a continuation at every poll whether the result is there. Only one instance
runs at a time, so host functions find theirs in `_running`.

Rules that keep a guest from ending the host, each learned the hard way:
- a callback catches everything; an error ends the guest with a trap and stands in `Instance.fault`. wasmtime-py keeps
  exceptions in a module global, where they reach the wrong guest, so its `add_func` is not used;
- parameters and results of a call outlive its future, the future is deleted before the store;
- a guest that does not end is dropped with its future, which unwinds its fiber.

The layout of everything here belongs to exactly one version of wasmtime; `check_version` says so at start.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from typing import Any, Protocol

import wasmtime
from wasmtime import _ffi as ffi
from wasmtime import component
from wasmtime.component import _types as wt

from ..errors import CallError
from .wasm_values import SIZE, Result, c_function, reader, resource_number, writer

WASMTIME_VERSION = "50.0.1"
TICK_SECONDS = 0.002
"""A guest that does not wait is interrupted after one to two of these."""

MAX_TABLES = 20
MAX_TABLE_ELEMENTS = 100_000
MAX_CORE_INSTANCES = 100
"""What a store allows beside its one memory; the Python guest needs 2 tables of less than 10,000 elements."""

TRAP_FRAMES = 8
"""Frames of the guest that are told when it traps."""

ERROR_CODES = (
    "invalid-argument",
    "not-found",
    "invalid-state",
    "quota-exceeded",
    "exhausted",
    "unsupported",
    "cancelled",
    "worker-failed",
)
"""Cases of `error-code` in types.wit, in order."""

_P, _N = ctypes.c_void_p, ctypes.c_size_t
_SyncCallback = ctypes.CFUNCTYPE(_N, _P, _P, _P, _P, _N, _P, _N)
_AsyncCallback = ctypes.CFUNCTYPE(None, _P, _P, _P, _P, _N, _P, _N, _P, _P)
_Continuation = ctypes.CFUNCTYPE(ctypes.c_bool, _P)

_add_sync = c_function("wasmtime_component_linker_instance_add_func", _P, _P, ctypes.c_char_p, _N, _P, _P, _P)
_add_async = c_function("wasmtime_component_linker_instance_add_func_async", _P, _P, ctypes.c_char_p, _N, _P, _P, _P)
_error_new = c_function("wasmtime_error_new", _P, ctypes.c_char_p)
_error_message = c_function("wasmtime_error_message", None, _P, _P)
_error_delete = c_function("wasmtime_error_delete", None, _P)
_bytes_delete = c_function("wasm_byte_vec_delete", None, _P)
_set_epoch_deadline = c_function("wasmtime_context_set_epoch_deadline", None, _P, ctypes.c_uint64)
_yield_on_epoch = c_function("wasmtime_context_epoch_deadline_async_yield_and_update", _P, _P, ctypes.c_uint64)
_future_delete = c_function("wasmtime_call_future_delete", None, _P)
_value_delete = c_function("wasmtime_component_val_delete", None, _P)
# These run guest code, for up to a tick: other threads go on meanwhile.
_GIL_FREE = ctypes.CDLL(ffi.dll._name)
_instantiate = c_function("wasmtime_component_linker_instantiate_async", _P, _P, _P, _P, _P, _P, library=_GIL_FREE)
_call = c_function("wasmtime_component_func_call_async", _P, _P, _P, _P, _N, _P, _N, _P, library=_GIL_FREE)
_poll = c_function("wasmtime_call_future_poll", ctypes.c_bool, _P, library=_GIL_FREE)


class LinkError(Exception):
    """A component cannot be linked against what inferlets may import."""


class Suspend:
    """What a suspending host function returns when its result is not there yet; `Instance.resume` gives it."""


SUSPEND = Suspend()


class Owner(Protocol):
    """Whose calls an instance makes: the first argument of every host function."""

    instance: Instance


@dataclass(frozen=True)
class HostFunction:
    """A function that guests import. `call` gets the owner and the arguments, and returns the value (of the ok case, if
    the WIT result is a `result<_, error>`); it refuses with a CallError. A suspending one may return SUSPEND."""

    call: Callable[..., Any]
    suspends: bool = False


class Step(Enum):
    """What an instance did when it had the processor."""

    DONE = "done"
    WAITING = "waiting"
    PREEMPTED = "preempted"


def check_version() -> None:
    """Raises LinkError unless wasmtime is the one that this module was written for."""
    installed = metadata.version("wasmtime")
    if installed != WASMTIME_VERSION:
        raise LinkError(
            f"wasmtime {installed} is installed, this version of pie needs exactly {WASMTIME_VERSION}: "
            f"pip install wasmtime=={WASMTIME_VERSION}"
        )


def new_engine() -> wasmtime.Engine:
    """An engine for components, with preemption by epochs."""
    check_version()
    config = wasmtime.Config()
    config.wasm_component_model = True
    config.epoch_interruption = True
    config.wasm_threads = False  # shared memories would not count against the limits of a store
    config.wasm_gc = False
    return wasmtime.Engine(config)


class Ticker:
    """Increments the epoch of an engine every TICK_SECONDS, from a thread; rests when it has not been needed lately."""

    REST_AFTER_TICKS = 50

    def __init__(self, engine: wasmtime.Engine) -> None:
        self._engine = engine
        self._event = threading.Event()
        self._wakes = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="epoch-ticker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        idle = seen = 0
        while not self._closed:
            if idle >= self.REST_AFTER_TICKS:
                self._event.wait()
            self._event.clear()
            time.sleep(TICK_SECONDS)
            self._engine.increment_epoch()
            wakes = self._wakes  # only `wake` writes it, so none is missed, whenever it comes
            idle, seen = (0 if wakes != seen else idle + 1), wakes

    def wake(self) -> None:
        """A guest runs now."""
        self._wakes += 1
        if not self._event.is_set():
            self._event.set()

    def close(self) -> None:
        """Stops the thread. Idempotent."""
        self._closed = True
        self._event.set()
        self._thread.join()


def address_of(managed: Any) -> int:
    """Address of a wasmtime-py object or ctypes pointer."""
    pointer = managed.ptr() if hasattr(managed, "ptr") else managed
    return ctypes.cast(pointer, _P).value or 0


def _take_message(error: int) -> str:
    text = ffi.wasm_byte_vec_t()
    _error_message(error, ctypes.addressof(text))
    message = ctypes.string_at(text.data, text.size).decode("utf-8", "replace")
    _bytes_delete(ctypes.addressof(text))
    _error_delete(error)
    return message


def _explain_trap(message: str) -> str:
    """The cause first, then the innermost frames of the guest."""
    backtrace, _, cause = message.partition("Caused by:")
    if not cause:
        return message
    frames = [line.strip() for line in backtrace.splitlines()[1 : 1 + TRAP_FRAMES]]
    return "\n  ".join([f"the program trapped: {cause.strip().removeprefix('wasm trap: ')}", *frames])


# ---- instances -------------------------------------------------------------------------------------------------------

_running: list[Any] = [None]
"""The instance that has the processor."""


class Instance:
    """One instance of a component, on its fiber. `step` until DONE, then `outcome`; `close` at any time."""

    __slots__ = (
        "_args",
        "_call_error",
        "_context",
        "_future",
        "_instance",
        "_linked",
        "_result",
        "_result_address",
        "_resumed",
        "_started",
        "_store",
        "_value",
        "_write",
        "fault",
        "owner",
        "waiting",
    )

    def __init__(self, linked: LinkedComponent, memory_bytes: int) -> None:
        self.owner: Owner | None = None
        self.fault: str | None = None
        self.waiting = False
        self._linked = linked
        self._started = False
        self._resumed = False
        self._value: Any = None
        self._write: Callable[[int, Any], None] | None = None
        self._result_address = 0
        self._store = wasmtime.Store(linked.engine)
        self._store.set_limits(
            memory_size=memory_bytes,
            memories=1,
            tables=MAX_TABLES,
            table_elements=MAX_TABLE_ELEMENTS,
            instances=MAX_CORE_INSTANCES,
        )
        self._context = address_of(self._store._context())
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
        """The store, as host resources need it."""
        return self._context

    @property
    def started(self) -> bool:
        """Instantiated: the next step calls `run`."""
        return self._started

    def instantiate(self) -> Step:
        """Instantiates without calling `run`: DONE when the instance is ready to start. Its code may run already."""
        if self._started or not self._poll_once():
            return Step.DONE if self._started else Step.PREEMPTED
        self._started = True
        if not self._failed():
            run = self._linked.run_function(self._store, self._instance)
            self._args = run
            self._future = _call(
                ctypes.addressof(run._func), self._context, 0, 0, ctypes.addressof(self._result), 1,
                ctypes.addressof(self._call_error),
            )  # fmt: skip
        return Step.DONE

    def step(self) -> Step:
        """Gives the guest the processor until it ends, waits or is preempted."""
        if not self._started and self.instantiate() is Step.PREEMPTED:
            return self._pending()
        if self._future is None or self._poll_once():
            return Step.DONE
        return self._pending()

    def _pending(self) -> Step:
        return Step.WAITING if self.waiting and not self._resumed else Step.PREEMPTED

    def _poll_once(self) -> bool:
        self._linked.wake()
        _set_epoch_deadline(self._context, 1)
        _running[0] = self
        done: bool = _poll(self._future)
        _running[0] = None
        if done:
            _future_delete(self._future)
            self._future = None
        return done

    def _failed(self) -> bool:
        if self._call_error.value:
            message = _explain_trap(_take_message(self._call_error.value))
            self._call_error.value = None
            if self.fault is None:
                self.fault = message
        return self.fault is not None

    def outcome(self) -> str | None:
        """Of an instance that is DONE: None if `run` succeeded, else what it or the trap said."""
        if self._failed():
            return self.fault
        result: Result = self._linked.read_outcome(ctypes.addressof(self._result))
        _value_delete(ctypes.addressof(self._result))
        return None if result.is_ok else (result.value or "the inferlet returned an error without a message")

    def resume(self, value: Any) -> None:
        """Gives the host function that suspended the guest its value; the next step goes on behind it."""
        assert self.waiting, "resume of an instance that does not wait"
        self._value = value
        self._resumed = True

    def close(self) -> None:
        """Ends the guest wherever it is and frees it. Idempotent. Not from within a step of its own."""
        before = _running[0]
        assert before is not self, "an instance is closed from within its own step"
        if self._future is not None:
            _running[0] = self
            _future_delete(self._future)
            _running[0] = before
            self._future = None
        if self._call_error.value:
            _take_message(self._call_error.value)
            self._call_error.value = None
        self._started = True
        self._store.close()


def _continue(_env: int | None) -> bool:
    instance: Instance = _running[0]
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


_continue_callback = _Continuation(_continue)
_continue_address = ctypes.cast(_continue_callback, _P).value or 0


# ---- linking ---------------------------------------------------------------------------------------------------------


class _Trap(Exception):
    """Ends the guest with a message."""


def trap(message: str) -> None:
    """Called by a host function: ends the guest; `message` is its fault."""
    raise _Trap(message)


def _record_fault(error: BaseException) -> int:
    message = str(error) if isinstance(error, _Trap) else f"internal error in a host function: {error!r}"
    instance: Instance = _running[0]
    if instance is not None and instance.fault is None:
        instance.fault = message
    pointer: int = _error_new(message.encode("utf-8", "replace")[:500].replace(b"\0", b""))
    return pointer


def _argument_readers(function: component.FuncType) -> Callable[[int, int], list[Any]]:
    kinds = [kind for _, kind in function.params]
    reads = [(reader(kind), i * SIZE) for i, kind in enumerate(kinds)]
    resources = {i for i, kind in enumerate(kinds) if isinstance(kind, wt.OwnType | wt.BorrowType)}
    if any(isinstance(kind, wt.ListType) and isinstance(kind.element, wt.BorrowType) for kind in kinds):
        return _resource_list_reader
    if not resources:
        return lambda _context, args: [read(args + offset) for read, offset in reads]
    return lambda context, args: [
        resource_number(context, args + offset) if i in resources else read(args + offset)
        for i, (read, offset) in enumerate(reads)
    ]


def _resource_list_reader(context: int, args: int) -> list[Any]:
    """Of the one function that takes a list of resources: `poll`."""
    size, data = ctypes.c_uint64.from_address(args + 8).value, ctypes.c_uint64.from_address(args + 16).value
    return [[resource_number(context, data + i * SIZE) for i in range(size)]]


def _is_call_error(kind: Any) -> bool:
    return (
        isinstance(kind, wt.ResultType)
        and isinstance(kind.err, wt.RecordType)
        and [name for name, _ in kind.err.fields] == ["code", "message"]
    )


def _result_writer(function: component.FuncType) -> Callable[[int, Any], None] | None:
    kind = function.result
    if kind is None:
        return None
    write = writer(kind)
    if not _is_call_error(kind):
        return write
    return lambda address, value: write(address, Result(True, value))


def _error_writer(function: component.FuncType) -> Callable[[int, CallError], None]:
    kind = function.result
    if not _is_call_error(kind):

        def refuse(_address: int, error: CallError) -> None:
            raise _Trap(str(error))

        return refuse
    write = writer(kind)
    return lambda address, error: write(address, Result(False, (ERROR_CODES.index(error.code), str(error))))


def _sync_callback(implementation: HostFunction, function: component.FuncType) -> Any:
    read, write, write_error = _argument_readers(function), _result_writer(function), _error_writer(function)
    call = implementation.call

    def callback(_env: int, context: int, _type: int, args: int, _nargs: int, results: int, _nresults: int) -> int:
        try:
            try:
                instance = _running[0]
                value = call(instance and instance.owner, *read(context, args))
            except CallError as error:
                write_error(results, error)
                return 0
            if write is not None:
                write(results, value)
            return 0
        except BaseException as error:
            return _record_fault(error)

    return _SyncCallback(callback)


def _async_callback(implementation: HostFunction, function: component.FuncType) -> Any:
    read, write = _argument_readers(function), _result_writer(function)
    call = implementation.call
    u64 = ctypes.c_uint64.from_address

    def callback(
        _env: int, context: int, _type: int, args: int, _nargs: int, results: int, _nresults: int, error_out: int,
        continuation: int,
    ) -> None:  # fmt: skip
        u64(continuation).value = _continue_address
        u64(continuation + 8).value = 0
        u64(continuation + 16).value = 0
        instance: Instance = _running[0]
        try:
            instance._write, instance._result_address = write, results
            instance.waiting, instance._resumed = True, False
            value = call(instance.owner, *read(context, args))
            if value is not SUSPEND:
                instance.resume(value)
        except BaseException as error:
            u64(error_out).value = _record_fault(error)
            instance._write, instance._resumed = None, True

    return _AsyncCallback(callback)


def _add(instance: Any, name: str, callback: Any, add: Callable[..., int | None]) -> Any:
    encoded = name.encode()
    error = add(address_of(instance), encoded, len(encoded), ctypes.cast(callback, _P).value, None, None)
    if error:
        raise LinkError(_take_message(error))
    return callback


def add_function(instance: Any, name: str, implementation: HostFunction, function: component.FuncType) -> Any:
    """Defines a host function in a linker's instance. What it returns must outlive the linker."""
    if implementation.suspends:
        return _add(instance, name, _async_callback(implementation, function), _add_async)
    return _add(instance, name, _sync_callback(implementation, function), _add_sync)


def _unavailable(interface: str, name: str) -> Any:
    def callback(*_: Any) -> int:
        return _record_fault(_Trap(f"`{name}` of {interface} is not available to inferlets"))

    return _SyncCallback(callback)


def run_guest_of(
    engine: wasmtime.Engine, linker: component.Linker, guest: component.Component, name: str, *arguments: Any
) -> Any:
    """Calls an export of a component of ours through wasmtime-py's public conversion, without a fiber."""
    store = wasmtime.Store(engine)
    store.set_epoch_deadline(1 << 40)
    function = linker.instantiate(store, guest).get_func(store, name)
    assert function is not None, f"the component exports {name}"
    return function(store, *arguments)


class LinkedComponent:
    """A component and a linker that defines all of its imports. `functions` by (interface without version, name);
    `resources` by resource name: its host type number; `drop` is told when a guest drops one. `wake` is called before
    every step, so that the ticker never rests while a guest runs."""

    def __init__(
        self,
        engine: wasmtime.Engine,
        compiled: component.Component,
        functions: Mapping[tuple[str, str], HostFunction],
        resources: Mapping[str, int],
        drop: Callable[[Any, int, int], None],
        wake: Callable[[], None],
    ) -> None:
        self.engine = engine
        self._component = compiled
        self._linker = component.Linker(engine)
        self._keep: list[Any] = []
        self._functions = functions
        self._resources = resources
        self._drop = drop
        self.wake = wake
        self._define_imports()
        self._read_outcome: Callable[[int], Result] = self._outcome_reader()
        self.linker_address = address_of(self._linker)
        self.component_address = address_of(compiled)

    def _define_imports(self) -> None:
        with self._linker.root() as root:
            for interface, extern in self._component.type.imports(self.engine).items():
                kind = extern.ty
                if not isinstance(kind, component.ComponentInstanceType):
                    raise LinkError(f"imports {interface!r}, which is no interface of the world of inferlets")
                with root.add_instance(interface) as instance:
                    self._define_interface(instance, interface, kind)

    def _define_interface(self, instance: Any, interface: str, kind: component.ComponentInstanceType) -> None:
        plain = interface.split("@")[0]
        for name, extern in kind.exports(self.engine).items():
            item = extern.ty
            if isinstance(item, component.ResourceType):
                self._define_resource(instance, name)
            elif isinstance(item, component.FuncType):
                implementation = self._functions.get((plain, name))
                if implementation is None:
                    self._keep.append(_add(instance, name, _unavailable(plain, name), _add_sync))
                else:
                    self._keep.append(add_function(instance, name, implementation, item))

    def _define_resource(self, instance: Any, name: str) -> None:
        number = self._resources.get(name, len(self._resources) + 1)

        def drop(_store: Any, representation: int) -> None:
            if _running[0] is not None and _running[0].owner is not None:
                self._drop(_running[0].owner, number, representation)

        instance.add_resource(name, component.ResourceType.host(number), drop)

    def _outcome_reader(self) -> Callable[[int], Result]:
        exports = self._component.type.exports(self.engine)
        run = exports["run"].ty if "run" in exports else None
        if not isinstance(run, component.FuncType):
            raise LinkError("does not export the function `run: func() -> result<_, string>`")
        if run.params or not isinstance(run.result, wt.ResultType):
            raise LinkError("exports `run` with another type than `func() -> result<_, string>`")
        return reader(run.result)

    def read_outcome(self, address: int) -> Result:
        return self._read_outcome(address)

    def run_function(self, store: wasmtime.Store, instance: Any) -> component.Func:
        function = component.Instance._from_raw(instance).get_func(store, "run")
        assert function is not None, "run was found when the component was linked"
        return function
