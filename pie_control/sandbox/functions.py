"""Host functions: Python functions that guests import, with conversion of their WIT values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import wasmtime
from wasmtime import component
from wasmtime.component import _types as wt

from ..errors import CallError, InvalidArgument
from ..texts import cut_middle
from .compiled.crossings import Crossing, Crossings, PythonWay
from .engine import LinkError, address_of, c_function, take_message
from .fibers import CONTINUATION, SUSPEND, Instance, running
from .values import OF, SIZE, Result, reader, resource_number, writer

MAX_ITEMS = 1 << 14
"""Most items of a list that a guest passes, where nothing else is said: it is converted in a fraction of a millisecond,
and has room for all pages or embeds of an inferlet."""
MAX_TEXT_BYTES = 4 << 20
"""Most bytes of a text that a guest passes, in UTF-8. What a function does with it may be bounded more narrowly."""
MAX_ERROR_BYTES = 4096
"""Most bytes of the message of an error that a guest gets. It may quote what the guest passed."""

_P, _N = ctypes.c_void_p, ctypes.c_size_t
_u64 = ctypes.c_uint64.from_address
_SyncCallback = ctypes.CFUNCTYPE(_N, _P, _P, _P, _P, _N, _P, _N)
_AsyncCallback = ctypes.CFUNCTYPE(None, _P, _P, _P, _P, _N, _P, _N, _P, _P)

_add_sync = c_function("wasmtime_component_linker_instance_add_func", _P, _P, ctypes.c_char_p, _N, _P, _P, _P)
_add_async = c_function("wasmtime_component_linker_instance_add_func_async", _P, _P, ctypes.c_char_p, _N, _P, _P, _P)
_error_new = c_function("wasmtime_error_new", _P, ctypes.c_char_p)


@dataclass(frozen=True)
class HostFunction:
    """A function that guests import. `call` takes the owner and the arguments, and returns the value (of the ok case,
    if the WIT result is a `result<_, error>`) or raises CallError. A suspending function may return SUSPEND.

    `most`: items of a list or bytes of a text that a parameter may have, where that is not MAX_ITEMS or MAX_TEXT_BYTES.
    `native`: a function of native.c that does the same without Python, where it is compiled. `signature`: the type by
    which alone a component may import it; "": the contract has looked at that.
    """

    call: Callable[..., Any]
    suspends: bool = False
    most: Mapping[str, int] = field(default_factory=dict)
    native: str = ""
    signature: str = ""


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


Parameters = Sequence[tuple[str, Any]]
"""Names and types: wasmtime makes them anew for whoever asks a function's type."""


def _argument_readers(parameters: Parameters, most: Mapping[str, int]) -> Callable[[int, int], list[Any]]:
    """A function of a store's context and the address of the arguments. It raises InvalidArgument before it converts
    what is too long."""
    resources = any(_holds_resources(kind) for _, kind in parameters)
    reads = [
        (_bounded(_reader_of_store(kind) if resources else reader(kind), name, kind, most.get(name)), i * SIZE)
        for i, (name, kind) in enumerate(parameters)
    ]
    if resources:
        return lambda context, args: [read(context, args + offset) for read, offset in reads]
    return lambda _context, args: [read(args + offset) for read, offset in reads]


def _holds_resources(kind: Any) -> bool:
    return isinstance(kind.element if isinstance(kind, wt.ListType) else kind, wt.OwnType | wt.BorrowType)


def _reader_of_store(kind: Any) -> Callable[[int, int], Any]:
    """The reader of a parameter of a function that takes resources."""
    if not _holds_resources(kind):
        read = reader(kind)
        return lambda _context, address: read(address)
    return _read_resources if isinstance(kind, wt.ListType) else resource_number


def _read_resources(context: int, address: int) -> list[int]:
    size, data = _u64(address + OF).value, _u64(address + OF + 8).value
    return [resource_number(context, data + i * SIZE) for i in range(size)]


def _bound(kind: Any, most: int | None) -> int | None:
    """The bound of a parameter; None: values of its type have no size."""
    match kind:
        case wt.ListType():
            return most or MAX_ITEMS
        case wt.String() | wt.EnumType():
            return most or MAX_TEXT_BYTES
    return None


def _bounded(read: Callable[..., Any], name: str, kind: Any, most: int | None) -> Callable[..., Any]:
    bound = _bound(kind, most)
    if bound is None:
        return read
    what = "bytes" if isinstance(kind, wt.String) else "items"

    def read_bounded(*place: int) -> Any:
        size = _u64(place[-1] + OF).value
        if size > bound:
            raise InvalidArgument(f"`{name}` has {size} {what}; one call takes {bound}: pass less at a time")
        return read(*place)

    return read_bounded


def _is_call_error(kind: Any) -> bool:
    return (
        isinstance(kind, wt.ResultType)
        and isinstance(kind.err, wt.RecordType)
        and [name for name, _ in kind.err.fields] == ["code", "message"]
    )


Write = Callable[[int, Any], None]
Refuse = Callable[[int, CallError], None]


def _writers(kind: Any, tells_errors: bool) -> tuple[Write | None, Refuse | None]:
    """What write the value of a function with this result, and an error; None: there is none, or it knows no error, so
    that one ends the guest."""
    if kind is None:
        return None, None
    write = writer(kind)
    if not tells_errors:
        return write, None
    return (
        lambda address, value: write(address, Result(True, value)),
        lambda address, error: write(address, Result(False, (error.code, _message(error)))),
    )


def _message(error: CallError) -> str:
    return cut_middle(str(error), MAX_ERROR_BYTES)


def _python_way(implementation: HostFunction, parameters: Parameters, result: Any, tells_errors: bool) -> PythonWay:
    write, refuse = _writers(result, tells_errors)

    def fail(results: int, error: BaseException) -> int:
        try:
            if not isinstance(error, CallError):
                return _record_fault(error)
            if refuse is None:
                return _record_fault(_Trap(str(error)))
            refuse(results, error)
            return 0
        except BaseException as another:
            return _record_fault(another)

    read, call = _argument_readers(parameters, implementation.most), implementation.call
    whole = (_suspending if implementation.suspends else _returning)(read, call, write, refuse, fail)
    return PythonWay(whole, write, refuse, fail)


def _returning(read: Any, call: Any, write: Any, _refuse: Any, fail: Any) -> Callable[[int, int, int], int]:
    """All of a call that does not suspend: (context, arguments, results) -> error or 0."""

    def whole(context: int, args: int, results: int) -> int:
        try:
            instance = running[0]
            value = call(instance and instance.owner, *read(context, args))
            if write is not None:
                write(results, value)
            return 0
        except BaseException as error:
            code: int = fail(results, error)
            return code

    return whole


def _suspending(read: Any, call: Any, write: Any, refuse: Any, _fail: Any) -> Callable[[int, int, int, int, int], None]:
    """All of a call that may suspend: (context, arguments, results, error, continuation)."""

    def whole(context: int, args: int, results: int, error_out: int, continuation: int) -> None:
        _u64(continuation).value = CONTINUATION
        _u64(continuation + 8).value = 0
        _u64(continuation + 16).value = 0
        instance: Instance = running[0]
        try:
            instance.expect(write, refuse, results)
            arguments = read(context, args)
            value = call(instance.owner, *arguments)
            if value is not SUSPEND:
                instance.resume(value)
        except CallError as error:
            instance.refuse(error)  # which ends the guest where the function's type knows no error
        except BaseException as error:
            _u64(error_out).value = _record_fault(error)
            instance.forget_result()

    return whole


def _sync_callback(whole: Callable[[int, int, int], int]) -> Any:
    def callback(_env: int, context: int, _type: int, args: int, _nargs: int, results: int, _nresults: int) -> int:
        return whole(context, args, results)

    return _SyncCallback(callback)


def _async_callback(whole: Callable[[int, int, int, int, int], None]) -> Any:
    def callback(
        _env: int, context: int, _type: int, args: int, _nargs: int, results: int, _nresults: int, error_out: int,
        continuation: int,
    ) -> None:  # fmt: skip
        whole(context, args, results, error_out, continuation)

    return _AsyncCallback(callback)


def _compiled(
    crossings: Crossings, implementation: HostFunction, parameters: Parameters, result: Any, python: PythonWay
) -> Crossing | None:
    most = implementation.most
    return crossings.crossing(
        [kind for _, kind in parameters],
        result,
        [_bound(kind, most.get(name)) or most.get(name, 0) for name, kind in parameters],
        implementation.call,
        implementation.suspends,
        implementation.native,
        python,
    )


def _add(instance: Any, name: str, crossing: Crossing, add: Callable[..., int | None]) -> Any:
    encoded = name.encode()
    error = add(address_of(instance), encoded, len(encoded), crossing.callback, crossing.argument, None)
    if error:
        raise LinkError(take_message(error))
    return crossing.keep


def _in_python(callback: Any) -> Crossing:
    return Crossing(ctypes.cast(callback, _P).value or 0, 0, callback)


def add_function(
    instance: Any,
    name: str,
    implementation: HostFunction,
    function: component.FuncType,
    crossings: Crossings | None = None,
) -> Any:
    """Defines a host function in a linker's instance, the compiled way if there is one. The returned object must
    outlive the linker."""
    parameters, result = function.params, function.result
    tells_errors = _is_call_error(result)
    python = _python_way(implementation, parameters, result, tells_errors)
    crossing = None
    if crossings and (tells_errors or not isinstance(result, wt.ResultType)):
        crossing = _compiled(crossings, implementation, parameters, result, python)
    if implementation.suspends:
        return _add(instance, name, crossing or _in_python(_async_callback(python.whole)), _add_async)
    return _add(instance, name, crossing or _in_python(_sync_callback(python.whole)), _add_sync)


def _end_guest(message: int, *_: Any) -> int:
    """The callback of all functions that end the guest; `message`: address of a text."""
    return _record_fault(_Trap(ctypes.cast(message, ctypes.py_object).value))


_END_GUEST = _SyncCallback(_end_guest)


def add_trap(instance: Any, name: str, message: str) -> Any:
    """Defines a function that ends the guest with a message. The returned object must outlive the linker."""
    crossing = Crossing(ctypes.cast(_END_GUEST, _P).value or 0, id(message), message)
    return _add(instance, name, crossing, _add_sync)


def run_guest_of(
    engine: wasmtime.Engine,
    linker: component.Linker,
    guest: component.Component,
    name: str,
    *arguments: Any,
    prepare: Callable[[wasmtime.Store], None] = lambda _: None,
) -> Any:
    """Calls an export of one of our own components through wasmtime-py's public conversion, without a fiber."""
    store = wasmtime.Store(engine)
    prepare(store)
    store.set_epoch_deadline(1 << 40)
    function = linker.instantiate(store, guest).get_func(store, name)
    assert function is not None, f"the component exports {name}"
    return function(store, *arguments)
