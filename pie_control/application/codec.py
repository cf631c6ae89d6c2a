"""Frames of messages to bytes and back.

msgspec encodes messages and decodes them by their types, so what is not of these types is refused with an error that
says where. Everything is derived from the records: a new message, a new kind of command or of value needs no change
here. Only `Results` has a form of its own, as there are many completions in it: those of one kind of value that follow
each other are columns, one for each field of the value, and one array for all arrays of a field.
"""

from __future__ import annotations

import hashlib
import operator
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import accumulate, groupby, pairwise
from types import MappingProxyType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from pie_control import errors
from pie_control.calls import CALLS
from pie_control.calls.values import Completion, Done, Value
from pie_control.errors import CallError
from pie_control.record import Record
from pie_control.resources.kinds import RESOURCES, Resource
from pie_control.scheduling.turn import Ending, Progress, RunTokens

from .messages import FromHost, Results, ToHost

DTYPES = {np.dtype(name).str: np.dtype(name) for name in ("?", "u1", "<i4", "<i8", "<f4", "<f8")}
"""Number formats of arrays that may cross."""


class FrameError(ValueError):
    """Bytes are not a frame of messages."""


# ---- single values -------------------------------------------------------------------------------------------------

_BY_KEY = {resource.key: resource for resource in RESOURCES}
_ERRORS: Mapping[str, type[CallError]] = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CallError)
}


def _to_basic(value: Any) -> Any:
    """What msgspec does not know, as what it knows."""
    if isinstance(value, Resource):
        return value.key
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.str in DTYPES:
        return value.dtype.str, value.tobytes()
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, CallError):
        return type(value).__name__, str(value)
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} cannot cross to another process")


def _from_basic(kind: Any, value: Any) -> Any:
    """The reverse, by the type that is wanted."""
    if kind is Resource:
        return _BY_KEY[value]
    if kind is CallError:
        name, message = value
        return _ERRORS[name](message)
    if (wanted := _scalar(kind)) is not None:
        dtype, data = value
        if DTYPES[dtype] != np.dtype(wanted):
            raise ValueError(f"an array of {dtype} in place of {np.dtype(wanted)}")
        return np.frombuffer(data, DTYPES[dtype])
    if kind is object:  # anything basic
        return value
    raise NotImplementedError(f"{kind} cannot cross to another process")


def _scalar(kind: Any) -> Any:
    """The kind of an array's numbers; None if it is no kind of array. As of numpy 2.5, `NDArray` is an alias, which
    type hints keep."""
    if get_origin(kind) is NDArray:
        return get_args(kind)[0]
    return get_args(get_args(kind)[1])[0] if get_origin(kind) is np.ndarray else None


# ---- completions ---------------------------------------------------------------------------------------------------


class _ArrayColumn:
    """A field that is an array: all of them as one, and where each ends."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def encode(self, arrays: Sequence[NDArray[Any]]) -> tuple[list[int], bytes]:
        return [len(one) for one in arrays], np.concatenate(arrays, dtype=self._dtype, casting="safe").tobytes()

    def decode(self, column: Any) -> list[NDArray[Any]]:
        lengths, data = column
        whole = np.frombuffer(data, self._dtype)
        ends = list(accumulate(lengths, initial=0))
        if ends[-1] != len(whole) or min(lengths) < 0:
            raise ValueError("the arrays of a column do not fill it")
        return [whole[begin:end].copy() for begin, end in pairwise(ends)]  # a view keeps those of all


class _PlainColumn:
    """A field that is a number, a text or bytes."""

    def encode(self, values: Sequence[Any]) -> Sequence[Any]:
        return values

    def decode(self, column: Any) -> Any:
        return column


PLAIN = (bool, int, float, str, bytes)


def _column(field: Any) -> _ArrayColumn | _PlainColumn:
    if field in PLAIN:
        return _PlainColumn()
    if (scalar := _scalar(field)) is not None:
        return _ArrayColumn(np.dtype(scalar))
    raise TypeError(f"{field} cannot be a field of a value: it is neither an array nor one of {PLAIN}")


class _ValueKind:
    """Values of one kind as columns."""

    def __init__(self, kind: type[Any]) -> None:
        self._new: Callable[[Any], Value] = partial(tuple.__new__, kind)  # in C, twice as fast as the class itself
        self._columns = [_column(field) for field in get_type_hints(kind).values()]

    def encode(self, values: Sequence[Value]) -> list[Any]:
        return [column.encode(each) for column, each in zip(self._columns, zip(*values, strict=True), strict=False)]

    def decode(self, columns: Sequence[Any], count: int) -> Iterator[Value]:
        if not self._columns:
            return map(self._new, ((),) * count)
        decoded = [column.decode(each) for column, each in zip(self._columns, columns, strict=True)]
        return map(self._new, zip(*decoded, strict=True))


class _ErrorKind:
    """Errors in place of values."""

    def encode(self, values: Sequence[CallError]) -> list[Any]:
        return [[type(error).__name__ for error in values], [str(error) for error in values]]

    def decode(self, columns: Sequence[Any], count: int) -> Iterator[CallError]:
        names, messages = columns
        return (_ERRORS[name](message) for name, message in zip(names, messages, strict=True))


_ERROR = "error"
_VALUES: set[type[Any]] = {Done}.union(*(call.values for call in CALLS.values()))
_KINDS: Mapping[str, _ValueKind | _ErrorKind] = {
    _ERROR: _ErrorKind(),
    **{kind.__name__: _ValueKind(kind) for kind in _VALUES},
}
_new_completion = partial(tuple.__new__, Completion)


class _Answers(Record, frozen=True, tag=None):
    """Completions that follow each other, with values of one kind."""

    kind: str  # of _KINDS
    owners: Sequence[int]
    futures: Sequence[int]
    columns: list[Any]


def _encode_completions(completions: Sequence[Completion]) -> list[_Answers]:
    encoded = []
    for kind, group in groupby(completions, lambda completion: type(completion.value)):
        owners, futures, values = zip(*group, strict=True)
        name = _ERROR if issubclass(kind, CallError) else kind.__name__
        encoded.append(_Answers(name, owners, futures, _KINDS[name].encode(values)))
    return encoded


def _decode_completions(encoded: Sequence[_Answers]) -> list[Completion]:
    completions: list[Completion] = []
    for each in encoded:
        values = _KINDS[each.kind].decode(each.columns, len(each.owners))
        completions += map(_new_completion, zip(each.owners, each.futures, values, strict=True))
    return completions


class _Results(Record, frozen=True, tag="Results"):
    """`Results` as they cross."""

    model: str
    completions: list[_Answers]
    progress: list[Progress]
    endings: Sequence[Ending]
    runs: RunTokens

    @classmethod
    def of(cls, results: Results) -> _Results:
        completions = _encode_completions(results.completions)
        return cls(results.model, completions, list(results.progress), results.endings, results.runs)

    def results(self) -> Results:
        return Results(self.model, _decode_completions(self.completions), self.progress, self.endings, self.runs)


# ---- frames --------------------------------------------------------------------------------------------------------

_FOR_HOST = reduce(operator.or_, (kind for kind in get_args(ToHost) if kind is not Results), _Results)
_encoder = msgspec.msgpack.Encoder(enc_hook=_to_basic)
_host_decoder = msgspec.msgpack.Decoder(list[_FOR_HOST], dec_hook=_from_basic)  # type: ignore[valid-type]
_control_decoder = msgspec.msgpack.Decoder(list[FromHost], dec_hook=_from_basic)


def encode_for_host(messages: Sequence[ToHost]) -> bytes:
    """A frame from control to a host."""
    return _encoder.encode([_Results.of(one) if type(one) is Results else one for one in messages])


def encode_for_control(messages: Sequence[FromHost]) -> bytes:
    """A frame from a host to control."""
    return _encoder.encode(messages)


def decode_for_host(frame: bytes | bytearray | memoryview) -> list[ToHost]:
    """What control said. Raises FrameError."""
    return _decoded(lambda: list(map(_as_said, _host_decoder.decode(frame))))


def decode_for_control(frame: bytes | bytearray | memoryview) -> list[FromHost]:
    """What a host said. Raises FrameError."""
    return _decoded(lambda: _control_decoder.decode(frame))


def _as_said(message: Any) -> ToHost:
    said: ToHost = message.results() if type(message) is _Results else message
    return said


def _decoded(decode: Callable[[], list[Any]]) -> list[Any]:
    try:
        return decode()
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise FrameError(f"not a frame of messages: {error}") from error


def _version() -> str:
    """Changes with every class that may cross, with its fields and with their types."""
    found: dict[Any, str] = {}
    new: list[Any] = [*get_args(ToHost), *get_args(FromHost), *_VALUES]
    while new:
        kind = new.pop()
        if kind not in found:
            hints = get_type_hints(kind) if isinstance(kind, type) and not get_args(kind) else {}
            fields = {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}
            found[kind] = f"{kind}: {fields}"
            new += [*get_args(kind), *fields.values()]
    return hashlib.sha256("\n".join(sorted(found.values())).encode()).hexdigest()[:16]


VERSION = _version()
"""What this process takes messages to be. Two that do not agree, because files were replaced while a server ran, do not
talk to each other."""
