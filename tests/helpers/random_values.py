"""Values of any type that may cross to another process, and what makes two of them equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pie_control import errors
from pie_control.application import codec
from pie_control.calls import CALLS
from pie_control.calls.values import Completion, Done
from pie_control.errors import CallError
from pie_control.record import Int32
from pie_control.resources.kinds import RESOURCES, Resource

ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CallError)]
VALUES: list[type[Any]] = [Done, *sorted({call.value for call in CALLS.values() if call.value}, key=repr)]
NUMBERS = st.integers(0, 2**31 - 1) | st.integers(-(2**63), 2**64 - 1)
MADE: dict[Any, SearchStrategy[Any]] = {
    int: NUMBERS,
    Int32: st.integers(-(2**31), 2**31 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    type(None): st.none(),
    object: st.text(max_size=4) | st.integers(-5, 5) | st.none(),
    Resource: st.sampled_from(RESOURCES),
    CallError: st.builds(lambda kind, text: kind(text), st.sampled_from(ERRORS), st.text(max_size=20)),
}


def any_of(kind: Any) -> SearchStrategy[Any]:
    """Values of a type, records and their fields included."""
    arguments = get_args(kind)
    if kind in MADE:
        return MADE[kind]
    if kind is Completion:
        value = st.one_of(any_of(CallError), *map(any_of, VALUES))
        return st.builds(Completion, any_of(int), any_of(int), value)
    if (scalar := codec._scalar(kind)) is not None:
        return st.lists(st.integers(0, 1000), max_size=5).map(lambda items: np.array(items, scalar))
    match get_origin(kind):
        case None:
            return any_record(kind)
        case origin if origin in (Union, UnionType):
            return st.one_of(*map(any_of, arguments))
        case origin if origin is tuple and arguments[-1] is not Ellipsis:
            return st.tuples(*map(any_of, arguments))
        case origin if origin in (dict, Mapping):
            return st.dictionaries(any_of(arguments[0]), any_of(arguments[1]), max_size=3)
        case origin if origin in (list, tuple, Sequence):
            return st.lists(any_of(arguments[0]), max_size=4).map(list if origin is list else tuple)
        case origin if origin is Literal:
            return st.sampled_from(arguments)
    raise TypeError(f"no values of {kind}")


def any_record(kind: Any) -> SearchStrategy[Any]:
    if kind not in MADE:
        MADE[kind] = st.sampled_from(kind) if issubclass(kind, Enum) else _any_fields(kind)
    return MADE[kind]


def _any_fields(kind: Any) -> SearchStrategy[Any]:
    hints = {
        name: hint
        for name, hint in get_type_hints(kind, include_extras=True).items()
        if get_origin(hint) is not ClassVar
    }
    return st.builds(kind, **{name: any_of(hint) for name, hint in hints.items()})


def plain(value: Any) -> Any:
    """The same for two values that mean the same: lists and tuples are one, errors are told by class and text."""
    match value:
        case msgspec.Struct():
            return type(value).__name__, plain([getattr(value, name) for name in value.__struct_fields__])
        case np.ndarray():
            return "array", value.dtype.str, value.tolist()
        case CallError():
            return type(value).__name__, str(value)
        case Mapping():
            return {key: plain(each) for key, each in value.items()}
        case list():
            return tuple(map(plain, value))
        case tuple():
            items = tuple(map(plain, value))
            return (type(value).__name__, *items) if hasattr(value, "_fields") else items
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return type(value).__name__, plain(list(vars_of(value)))
    return value


def vars_of(value: Any) -> Sequence[Any]:
    return [getattr(value, field.name) for field in dataclasses.fields(value)]
