"""Component values as the C API lays them out in memory: read and written by address.

wasmtime-py converts values generically, at 50-400 us for calls of our size; the functions here cost 0.3-1 us per value
because each is built once per WIT type. Theory of operation:

A value (`wasmtime_component_val_t`) is 32 bytes: a kind byte, and at OF a union. Scalars stand in the union; a string
is (size, pointer to bytes); a list or tuple (size, pointer to values); a record (size, pointer to entries of a name and
a value); option, result and variant hold a pointer to a value or NULL. `reader(type)` returns a function from an
address to a Python value; `writer(type)` one that writes a Python value to an address. wasmtime keeps
ownership of the values that a reader reads. A writer allocates with wasmtime's own allocators, and wasmtime owns the
result. It drops that value even when a writer raises, so the kind byte is set only when the union behind it is valid.

Python forms: u8..u64, s32, f32, f64, bool, str; list<T> a list (list<u8> bytes; list<u32> and list<f32> may be written
from numpy arrays); tuple and record a tuple, in the order of fields; enum its name; option None or the value; result a
`Result`; a variant its case name (read) or (name, payload) (written); own and borrow the integer of a host resource.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from wasmtime import _ffi as ffi
from wasmtime.component import _types as wt

from .engine import c_function

Address = int
Reader = Callable[[Address], Any]
Writer = Callable[[Address, Any], None]

SIZE = ctypes.sizeof(ffi.wasmtime_component_val_t)
OF: int = ffi.wasmtime_component_val_t.of.offset
ENTRY_SIZE = ctypes.sizeof(ffi.wasmtime_component_valrecord_entry_t)
ENTRY_VALUE: int = ffi.wasmtime_component_valrecord_entry_t.val.offset
WORDS = SIZE // 4

MAX_OUTCOME_BYTES = 4 << 20
"""Read of the error that a guest returns."""

u8 = ctypes.c_uint8.from_address
u64 = ctypes.c_uint64.from_address
string_at = ctypes.string_at


class ContractError(Exception):
    """A WIT type that this module does not convert, or a value that does not fit its type."""


class Result(NamedTuple):
    """A WIT result."""

    is_ok: bool
    value: Any


_P = ctypes.c_void_p
_bytes_new = c_function("wasm_byte_vec_new", None, _P, ctypes.c_size_t, ctypes.c_char_p)
_list_new = c_function("wasmtime_component_vallist_new_uninit", None, _P, ctypes.c_size_t)
_tuple_new = c_function("wasmtime_component_valtuple_new_uninit", None, _P, ctypes.c_size_t)
_record_new = c_function("wasmtime_component_valrecord_new_uninit", None, _P, ctypes.c_size_t)
_value_new = c_function("wasmtime_component_val_new", _P, _P)
_resource_to_host = c_function("wasmtime_component_resource_any_to_host", _P, _P, _P, _P)
_resource_to_any = c_function("wasmtime_component_resource_host_to_any", _P, _P, _P, _P)
_resource_new = c_function("wasmtime_component_resource_host_new", _P, ctypes.c_bool, ctypes.c_uint32, ctypes.c_uint32)
_resource_rep = c_function("wasmtime_component_resource_host_rep", ctypes.c_uint32, _P)
_resource_delete = c_function("wasmtime_component_resource_host_delete", None, _P)

_KINDS = "BOOL S8 U8 S16 U16 S32 U32 S64 U64 F32 F64 STRING LIST RECORD TUPLE VARIANT ENUM OPTION RESULT RESOURCE"
KIND: dict[str, int] = {name: getattr(ffi, f"WASMTIME_COMPONENT_{name}").value for name in _KINDS.split(" ")}

_SCALARS: dict[type, tuple[str, Any]] = {
    wt.Bool: ("BOOL", ctypes.c_bool),
    wt.S8: ("S8", ctypes.c_int8),
    wt.U8: ("U8", ctypes.c_uint8),
    wt.S16: ("S16", ctypes.c_int16),
    wt.U16: ("U16", ctypes.c_uint16),
    wt.S32: ("S32", ctypes.c_int32),
    wt.U32: ("U32", ctypes.c_uint32),
    wt.S64: ("S64", ctypes.c_int64),
    wt.U64: ("U64", ctypes.c_uint64),
    wt.F32: ("F32", ctypes.c_float),
    wt.F64: ("F64", ctypes.c_double),
}


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read_string(address: Address) -> str:
    size = u64(address + OF).value
    return string_at(u64(address + OF + 8).value, size).decode() if size else ""


def _read_ends(address: Address) -> str:
    """A text, or its beginning and end if it is longer than MAX_OUTCOME_BYTES."""
    size, data, half = u64(address + OF).value, u64(address + OF + 8).value, MAX_OUTCOME_BYTES // 2
    if size <= MAX_OUTCOME_BYTES:
        return _read_string(address)
    begin, end = (string_at(at, half).decode("utf-8", "ignore") for at in (data, data + size - half))
    return f"{begin}\n[... of {size} bytes ...]\n{end}"


def _name_at(address: Address) -> str:
    return string_at(u64(address + 8).value, u64(address).value).decode()


def _read_u32_list(address: Address) -> list[int]:
    size = u64(address + OF).value
    if not size:
        return []
    return (ctypes.c_uint32 * (size * WORDS)).from_address(u64(address + OF + 8).value)[OF // 4 :: WORDS]


def _read_byte_list(address: Address) -> bytes:
    size = u64(address + OF).value
    return string_at(u64(address + OF + 8).value, size * SIZE)[OF::SIZE] if size else b""


def _scalar_reader(form: Any) -> Reader:
    at = form.from_address
    return lambda address: at(address + OF).value


def _list_reader(element: Any) -> Reader:
    if isinstance(element, wt.U32):
        return _read_u32_list
    if isinstance(element, wt.U8):
        return _read_byte_list
    read = reader(element)

    def read_list(address: Address) -> list[Any]:
        data = u64(address + OF + 8).value
        return [read(data + i * SIZE) for i in range(u64(address + OF).value)]

    return read_list


def _tuple_reader(elements: Sequence[Any]) -> Reader:
    reads = [(reader(element), i * SIZE) for i, element in enumerate(elements)]

    def read_tuple(address: Address) -> tuple[Any, ...]:
        data = u64(address + OF + 8).value
        return tuple(read(data + offset) for read, offset in reads)

    return read_tuple


def _record_reader(fields: Sequence[tuple[str, Any]]) -> Reader:
    reads = [(reader(kind), i * ENTRY_SIZE + ENTRY_VALUE) for i, (_, kind) in enumerate(fields)]

    def read_record(address: Address) -> tuple[Any, ...]:
        data = u64(address + OF + 8).value
        return tuple(read(data + offset) for read, offset in reads)

    return read_record


def _option_reader(payload: Any) -> Reader:
    read = reader(payload)

    def read_option(address: Address) -> Any:
        data = u64(address + OF).value
        return read(data) if data else None

    return read_option


def _result_reader(ok: Any, err: Any) -> Reader:
    reads = {True: reader(ok) if ok else None, False: reader(err) if err else None}

    def read_result(address: Address) -> Result:
        is_ok = bool(u8(address + OF).value)
        read, data = reads[is_ok], u64(address + OF + 8).value
        return Result(is_ok, read(data) if read and data else None)

    return read_result


def read_outcome(address: Address) -> Result:
    """The outcome of `run`, a result<_, string>: a guest may return as much as it has memory."""
    is_ok, data = bool(u8(address + OF).value), u64(address + OF + 8).value
    return Result(is_ok, None if is_ok or not data else _read_ends(data))


def reader(kind: Any) -> Reader:
    """A function that reads a value of this WIT type (an object of wasmtime.component's types)."""
    if type(kind) in _SCALARS:
        return _scalar_reader(_SCALARS[type(kind)][1])
    match kind:
        case wt.String():
            return _read_string
        case wt.ListType():
            return _list_reader(kind.element)
        case wt.TupleType():
            return _tuple_reader(kind.elements)
        case wt.RecordType():
            return _record_reader(kind.fields)
        case wt.EnumType() | wt.VariantType():
            return lambda address: _name_at(address + OF)
        case wt.OptionType():
            return _option_reader(kind.payload)
        case wt.ResultType():
            return _result_reader(kind.ok, kind.err)
        case wt.OwnType() | wt.BorrowType():
            return lambda _: None  # read with `resource_number`, which needs the store
    raise ContractError(f"no conversion for {type(kind).__name__}")


def resource_number(context: int, address: Address) -> int:
    """The integer of a host resource passed as own or borrow."""
    host = _P()
    if _resource_to_host(context, u64(address + OF).value, ctypes.addressof(host)):
        raise ContractError("not a resource of this host")
    number: int = _resource_rep(host)
    _resource_delete(host)
    return number


# ---- writing ---------------------------------------------------------------------------------------------------------


def _write_name(address: Address, data: bytes) -> None:
    _bytes_new(address, len(data), data)


def _write_string(address: Address, value: str) -> None:
    data = value.encode("utf-8", "replace")
    _bytes_new(address + OF, len(data), data)
    u8(address).value = KIND["STRING"]


def _scalar_writer(kind: int, form: Any) -> Writer:
    at = form.from_address

    def write_scalar(address: Address, value: Any) -> None:
        at(address + OF).value = value
        u8(address).value = kind

    return write_scalar


def _packed_list_writer(kind: int, dtype: Any) -> Writer:
    """Writes a list of scalars of at most 4 bytes from anything that numpy accepts, without a loop in Python."""
    items = np.dtype({"names": ["kind", "of"], "formats": ["u1", dtype], "offsets": [0, OF], "itemsize": SIZE})

    def write_packed(address: Address, value: Any) -> None:
        size = len(value)
        _list_new(address + OF, size)
        u8(address).value = KIND["LIST"]
        if size:
            data = (ctypes.c_uint8 * (size * SIZE)).from_address(u64(address + OF + 8).value)
            view: Any = np.frombuffer(memoryview(data), items)
            view["kind"] = kind
            view["of"] = np.frombuffer(value, "u1") if isinstance(value, bytes) else value

    return write_packed


def _list_writer(element: Any) -> Writer:
    packed = {wt.U8: "u1", wt.U32: "u4", wt.F32: "f4"}.get(type(element))
    if packed:
        return _packed_list_writer(KIND[_SCALARS[type(element)][0]], packed)
    write = writer(element)

    def write_list(address: Address, value: Sequence[Any]) -> None:
        _list_new(address + OF, len(value))
        u8(address).value = KIND["LIST"]
        data = u64(address + OF + 8).value
        for i, item in enumerate(value):
            write(data + i * SIZE, item)

    return write_list


def _tuple_writer(elements: Sequence[Any]) -> Writer:
    writes = [writer(element) for element in elements]

    def write_tuple(address: Address, value: Sequence[Any]) -> None:
        _tuple_new(address + OF, len(writes))
        u8(address).value = KIND["TUPLE"]
        data = u64(address + OF + 8).value
        for i, (write, item) in enumerate(zip(writes, value, strict=True)):
            write(data + i * SIZE, item)

    return write_tuple


def _record_writer(fields: Sequence[tuple[str, Any]]) -> Writer:
    writes = [(name.encode(), writer(kind)) for name, kind in fields]

    def write_record(address: Address, value: Sequence[Any]) -> None:
        _record_new(address + OF, len(writes))
        u8(address).value = KIND["RECORD"]
        data = u64(address + OF + 8).value
        for i, ((name, write), item) in enumerate(zip(writes, value, strict=True)):
            _write_name(data + i * ENTRY_SIZE, name)
            write(data + i * ENTRY_SIZE + ENTRY_VALUE, item)

    return write_record


def _write_enum(address: Address, value: str) -> None:
    _write_name(address + OF, value.encode())
    u8(address).value = KIND["ENUM"]


def _boxer(write: Writer) -> Callable[[Any], int]:
    """A function that writes a value to memory that wasmtime allocates, and returns its address. It always writes to
    the same place first: no value contains one of its own type, and all are written on one thread."""
    scratch = (ctypes.c_uint64 * (SIZE // 8))()
    address = ctypes.addressof(scratch)

    def box(value: Any) -> int:
        write(address, value)
        boxed: int = _value_new(scratch)
        return boxed

    return box


def _option_writer(payload: Any) -> Writer:
    box = _boxer(writer(payload))

    def write_option(address: Address, value: Any) -> None:
        u64(address + OF).value = 0 if value is None else box(value)
        u8(address).value = KIND["OPTION"]

    return write_option


def _variant_writer(cases: Sequence[tuple[str, Any]]) -> Writer:
    boxes = {name: _boxer(writer(kind)) if kind else None for name, kind in cases}

    def write_variant(address: Address, value: tuple[str, Any]) -> None:
        name, payload = value
        box = boxes[name]
        u64(address + OF + 16).value = box(payload) if box else 0
        _write_name(address + OF, name.encode())
        u8(address).value = KIND["VARIANT"]

    return write_variant


def _result_writer(ok: Any, err: Any) -> Writer:
    box_ok, box_err = (_boxer(writer(kind)) if kind else None for kind in (ok, err))
    kind = KIND["RESULT"]

    def write_result(address: Address, value: Result) -> None:
        is_ok, payload = value
        box = box_ok if is_ok else box_err
        boxed = box(payload) if box else 0
        u64(address + OF).value = is_ok
        u64(address + OF + 8).value = boxed
        u8(address).value = kind

    return write_result


def writer(kind: Any) -> Writer:
    """A function that writes a value of this WIT type."""
    if type(kind) in _SCALARS:
        name, form = _SCALARS[type(kind)]
        return _scalar_writer(KIND[name], form)
    match kind:
        case wt.String():
            return _write_string
        case wt.ListType():
            return _list_writer(kind.element)
        case wt.TupleType():
            return _tuple_writer(kind.elements)
        case wt.RecordType():
            return _record_writer(kind.fields)
        case wt.EnumType():
            return _write_enum
        case wt.VariantType():
            return _variant_writer(kind.cases)
        case wt.OptionType():
            return _option_writer(kind.payload)
        case wt.ResultType():
            return _result_writer(kind.ok, kind.err)
        case wt.OwnType() | wt.BorrowType():
            return _write_resource
    raise ContractError(f"no conversion for {type(kind).__name__}")


class OwnedResource(NamedTuple):
    """A host resource that a guest will own."""

    context: int
    number: int
    resource_type: int


def _write_resource(address: Address, value: OwnedResource) -> None:
    host = _resource_new(True, value.number, value.resource_type)
    any_resource = _P()
    failed = _resource_to_any(value.context, host, ctypes.addressof(any_resource))
    _resource_delete(host)
    if failed:
        raise ContractError("cannot hand out the resource")
    u64(address + OF).value = any_resource.value or 0
    u8(address).value = KIND["RESOURCE"]
