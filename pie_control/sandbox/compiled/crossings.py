"""The compiled way of a call from a guest to a Python function of the host, where this machine can compile it.

`find` gives it once for the process; without it `functions.py` does all in Python, slower and with the same effects.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_uint64, c_void_p, py_object
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wasmtime.component import _types as wt

from pie_inference.options.compiling import CannotCompile

from ..engine import LIBRARY
from ..fibers import SUSPEND, continue_guest, running
from ..values import KIND, OF, SIZE
from .build import build

MOST_PARAMETERS = 14
_KINDS = "BOOL U8 U32 U64 F32 F64 STRING LIST TUPLE OPTION RESULT"
_LAYOUT = [SIZE, OF, *(KIND[name] for name in _KINDS.split(" "))]
_CODES: dict[type, str] = {wt.Bool: "b", wt.U32: "4", wt.U64: "8", wt.F32: "f", wt.F64: "d", wt.String: "s"}
_MADE_BY_WASMTIME = (
    "wasm_byte_vec_new",
    "wasmtime_component_vallist_new_uninit",
    "wasmtime_component_valtuple_new_uninit",
    "wasmtime_component_val_new",
    "wasmtime_component_val_delete",
    "wasmtime_error_new",
)
_NAMES = ("owner", "expect", "_resumed", "_write", "_value", "_result_address", "waiting")

log = logging.getLogger("pie.sandbox")


class _Api(ctypes.Structure):
    """The struct `Api` of values.h."""

    _fields_ = [
        *((name, c_void_p) for name in _MADE_BY_WASMTIME),
        *((name, py_object) for name in ("running", "none", "suspend", "resumed_in_python", *_NAMES)),
    ]


class _Function(ctypes.Structure):
    """The struct `Function` of values.h."""

    _fields_ = [
        *((name, py_object) for name in ("call", "in_python", "write", "refuse", "fail")),
        ("parameters", c_char_p),
        ("result", c_char_p),
        ("most", ctypes.POINTER(c_uint64)),
        ("count", c_uint64),
    ]


class _OtherType(Exception):
    """A type that only Python converts."""


@dataclass(frozen=True)
class PythonWay:
    """How functions.py makes one function's calls: what the compiled way leaves to it.

    `whole`: a whole call. `write(results, value)`; `refuse(results, error)`, or None; `fail(results, exception)` gives
    the address of an error that ends the guest, or 0."""

    whole: Callable[..., Any]
    write: Callable[[int, Any], None] | None
    refuse: Callable[[int, Any], None] | None
    fail: Callable[[int, BaseException], int]


@dataclass(frozen=True)
class Crossing:
    """What wasmtime gets for one function: addresses of a callback and of its argument. `keep` outlives the linker."""

    callback: int
    argument: int
    keep: object


class Crossings:
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.PyDLL(str(path))
        layout = list((ctypes.c_int32 * len(_LAYOUT)).in_dll(self._library, "LAYOUT"))
        if layout != _LAYOUT:
            raise CannotCompile(f"values have another layout than {layout}: {_LAYOUT}")
        addresses = [ctypes.cast(LIBRARY[name], c_void_p).value for name in _MADE_BY_WASMTIME]
        self._api = _Api(*addresses, running, None, SUSPEND, continue_guest, *_NAMES)
        self._library.set_up(ctypes.byref(self._api))

    def ticks(self, engine: int, seconds: float, count: int) -> Callable[[], int]:
        """A function that increments the epoch of an engine, of this address, so many times, with a pause before each;
        it gives `count`. Other threads run meanwhile."""
        tick = ctypes.CDLL(self._library._name).tick
        tick.argtypes, tick.restype = (c_void_p, c_void_p, c_uint64, c_uint64), None
        increment = ctypes.cast(LIBRARY["wasmtime_engine_increment_epoch"], c_void_p).value

        def ticks() -> int:
            tick(increment, engine, int(seconds * 1e9), count)
            return count

        return ticks

    def crossing(
        self,
        kinds: Sequence[Any],
        result: Any,
        most: Sequence[int],
        call: Callable[..., Any],
        suspends: bool,
        native: str,
        python: PythonWay,
    ) -> Crossing | None:
        """The compiled way of a function with parameters of these kinds; None if only Python converts its values.

        `most`: items or bytes of each parameter. `native`: a C function that does the same without Python; empty: there
        is none."""
        try:
            parameters, result_code = "".join(map(_parameter_code, kinds)), _result_code(result)
        except _OtherType:
            if not native:
                return None
            parameters, result_code = "8" * len(kinds), None
        if len(kinds) > MOST_PARAMETERS:
            return None
        bounds = (c_uint64 * len(kinds))(*most)
        function = _Function(
            call, python.whole, python.write, python.refuse, python.fail,
            parameters.encode(), result_code, bounds, len(kinds),
        )  # fmt: skip
        name = native or ("call_suspending" if suspends else "call_function")
        callback = ctypes.cast(self._library[name], c_void_p).value or 0
        return Crossing(callback, ctypes.addressof(function), (self, function))


def _parameter_code(kind: Any) -> str:
    if isinstance(kind, wt.EnumType):
        return "s"  # its name
    if isinstance(kind, wt.ListType) and not isinstance(kind.element, wt.U8):
        return "l" + _parameter_code(kind.element)
    if type(kind) in _CODES:
        return _CODES[type(kind)]
    raise _OtherType


def _result_code(kind: Any) -> bytes | None:
    """None: the function has no result. The error of a result is written in Python."""
    if kind is None:
        return None
    if isinstance(kind, wt.ResultType):
        return ("r" + ("_" if kind.ok is None else _value_code(kind.ok))).encode()
    return _value_code(kind).encode()


def _value_code(kind: Any) -> str:
    match kind:
        case wt.ListType() if not isinstance(kind.element, wt.U8):
            return "l" + _value_code(kind.element)
        case wt.OptionType():
            return "o" + _value_code(kind.payload)
        case wt.TupleType() if len(kind.elements) < 10:
            return f"t{len(kind.elements)}" + "".join(map(_value_code, kind.elements))
    if type(kind) in _CODES:
        return _CODES[type(kind)]
    raise _OtherType


def find(folder: Path) -> Crossings | None:
    """The compiled way, from a folder, compiled first if necessary. None, with the reason in the log: there is none."""
    try:
        return Crossings(build(folder))
    except (CannotCompile, OSError, AttributeError, ValueError) as error:
        log.warning("calls between guests and host are slower than they could be, in Python only: %s", error)
        return None
