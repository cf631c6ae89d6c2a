"""Host functions: Python functions that guests import, with conversion of their WIT values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import wasmtime
from wasmtime import component
from wasmtime.component import _types as wt

from ..errors import CallError
from .engine import LinkError, address_of, take_message
from .fibers import CONTINUATION, SUSPEND, Instance, running
from .values import SIZE, Result, c_function, reader, resource_number, writer

_P, _N = ctypes.c_void_p, ctypes.c_size_t
_SyncCallback = ctypes.CFUNCTYPE(_N, _P, _P, _P, _P, _N, _P, _N)
_AsyncCallback = ctypes.CFUNCTYPE(None, _P, _P, _P, _P, _N, _P, _N, _P, _P)

_add_sync = c_function("wasmtime_component_linker_instance_add_func", _P, _P, ctypes.c_char_p, _N, _P, _P, _P)
_add_async = c_function("wasmtime_component_linker_instance_add_func_async", _P, _P, ctypes.c_char_p, _N, _P, _P, _P)
_error_new = c_function("wasmtime_error_new", _P, ctypes.c_char_p)


@dataclass(frozen=True)
class HostFunction:
    """A function that guests import. `call` takes the owner and the arguments, and returns the value (of the ok case,
    if the WIT result is a `result<_, error>`) or raises CallError. A suspending function may return SUSPEND."""

    call: Callable[..., Any]
    suspends: bool = False


class _Trap(Exception):
    """Ends the guest with a message."""


def trap(message: str) -> None:
    """Ends the guest that called a host function; `message` says why."""
    raise _Trap(message)


def _record_fault(error: BaseException) -> int:
    message = str(error) if isinstance(error, _Trap) else f"internal error in a host function: {error!r}"
    instance: Instance = running[0]
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
    """Reads the arguments of `poll`, the one function that takes a list of resources."""
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
    kind: Any = function.result
    if not _is_call_error(kind):

        def refuse(_address: int, error: CallError) -> None:
            raise _Trap(str(error))

        return refuse
    write, code_of = writer(kind), _code_writer(kind.err.fields[0][1])
    return lambda address, error: write(address, Result(False, (code_of(error), str(error))))


def _code_writer(kind: Any) -> Callable[[CallError], Any]:
    """How an error says its code: as text, or as a case of an enum in versions of the API that fixed the codes. For
    a code that came later these have the code of the class above it."""
    if not isinstance(kind, wt.EnumType):
        return lambda error: error.code
    cases = {name: case for case, name in enumerate(kind.names)}

    def case_of(error: CallError) -> int:
        codes = [getattr(one, "code", None) for one in type(error).__mro__]
        return next(cases[code] for code in codes if code in cases)

    return case_of


def _sync_callback(implementation: HostFunction, function: component.FuncType) -> Any:
    read, write, write_error = _argument_readers(function), _result_writer(function), _error_writer(function)
    call = implementation.call

    def callback(_env: int, context: int, _type: int, args: int, _nargs: int, results: int, _nresults: int) -> int:
        try:
            try:
                instance = running[0]
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
    read, write, refuse = _argument_readers(function), _result_writer(function), _error_writer(function)
    call = implementation.call
    u64 = ctypes.c_uint64.from_address

    def callback(
        _env: int, context: int, _type: int, args: int, _nargs: int, results: int, _nresults: int, error_out: int,
        continuation: int,
    ) -> None:  # fmt: skip
        u64(continuation).value = CONTINUATION
        u64(continuation + 8).value = 0
        u64(continuation + 16).value = 0
        instance: Instance = running[0]
        try:
            instance.expect(write, refuse, results)
            arguments = read(context, args)
            value = call(instance.owner, *arguments)
            if value is not SUSPEND:
                instance.resume(value)
        except CallError as error:
            instance.refuse(error)
        except BaseException as error:
            u64(error_out).value = _record_fault(error)
            instance.forget_result()

    return _AsyncCallback(callback)


def _add(instance: Any, name: str, callback: Any, add: Callable[..., int | None]) -> Any:
    encoded = name.encode()
    error = add(address_of(instance), encoded, len(encoded), ctypes.cast(callback, _P).value, None, None)
    if error:
        raise LinkError(take_message(error))
    return callback


def add_function(instance: Any, name: str, implementation: HostFunction, function: component.FuncType) -> Any:
    """Defines a host function in a linker's instance. The returned object must outlive the linker."""
    if implementation.suspends:
        return _add(instance, name, _async_callback(implementation, function), _add_async)
    return _add(instance, name, _sync_callback(implementation, function), _add_sync)


def add_trap(instance: Any, name: str, message: str) -> Any:
    """Defines a function that ends the guest with a message. The returned object must outlive the linker."""

    def callback(*_: Any) -> int:
        return _record_fault(_Trap(message))

    return _add(instance, name, _SyncCallback(callback), _add_sync)


def run_guest_of(
    engine: wasmtime.Engine, linker: component.Linker, guest: component.Component, name: str, *arguments: Any
) -> Any:
    """Calls an export of one of our own components through wasmtime-py's public conversion, without a fiber."""
    store = wasmtime.Store(engine)
    store.set_epoch_deadline(1 << 40)
    function = linker.instantiate(store, guest).get_func(store, name)
    assert function is not None, f"the component exports {name}"
    return function(store, *arguments)
