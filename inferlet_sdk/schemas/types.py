"""From annotations to shapes."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from inferlet_sdk.schemas.json_values import parse_json
from inferlet_sdk.schemas.mismatch import SchemaMismatch, Truncated, UnsupportedType
from inferlet_sdk.schemas.shapes import (
    Again,
    Anything,
    Array,
    Described,
    Field,
    Moment,
    OneValue,
    Record,
    Scalar,
    Shape,
    Table,
    Tuple,
    Union,
)

T = TypeVar("T")

DEEPEST = 32
"""Levels of types within types."""

SUPPORTED = (
    "str, int, float, bool, None, list, tuple, set, dict with str keys, Literal, Enum, datetime, date, time, unions, "
    "dataclasses, TypedDict, NamedTuple, Annotated and Any"
)

SCALARS = {
    str: Scalar(str, "string", "a string"),
    int: Scalar(int, "integer", "an integer"),
    float: Scalar(float, "number", "a number"),
    bool: Scalar(bool, "boolean", "true or false"),
    type(None): Scalar(type(None), "null", "null"),
}
_MOMENTS = {
    datetime.datetime: Moment(datetime.datetime, "date-time", "a date and time in ISO 8601"),
    datetime.date: Moment(datetime.date, "date", "a date in ISO 8601"),
    datetime.time: Moment(datetime.time, "time", "a time in ISO 8601"),
}
_LISTS = {list: list, collections.abc.Sequence: list, set: set, collections.abc.Set: set, frozenset: frozenset}
"""What is made of the values."""
_DICTS = (dict, collections.abc.Mapping)


def json_schema(kind: object) -> dict[str, Any]:
    """The JSON Schema of a type. Raises UnsupportedType, which names the part that has none.

    json_schema(list[int])  # {"type": "array", "items": {"type": "integer"}}
    """
    return shape_of(kind).schema()


@overload
def from_json(text: str, kind: type[T]) -> T: ...
@overload
def from_json(text: str, kind: object) -> Any: ...
def from_json(text: str, kind: object) -> Any:
    """The instance of a type that a JSON text describes. Raises SchemaMismatch, which says where and what is wrong."""
    return read_text(text, shape_of(kind))


def read_text(text: str, shape: Shape) -> Any:
    """The instance of a shape that a JSON text describes."""
    try:
        return shape.read(parse_json(text), ())
    except Truncated:
        raise
    except SchemaMismatch as error:
        error.text = text
        raise


def shape_of(kind: object, where: str = "") -> Shape:
    """What an annotation means; `where` it stands, for messages. Raises UnsupportedType."""
    reader = _Reader(where)
    shape = reader.shape(kind)
    return Described(shape, reader.definitions()) if reader.again else shape


def record_of(name: str, fields: Mapping[str, tuple[object, object]], where: str = "") -> Record:
    """A record of annotations and defaults (... is none), such as the parameters of a function."""
    reader = _Reader(where or name)
    found = [reader.field(key, kind, default) for key, (kind, default) in fields.items()]
    return Record(name, found, dict, more=reader.definitions())


class _Reader:
    """Reads the annotations within one, and knows where it is. `again`: types that contain themselves."""

    def __init__(
        self,
        where: str,
        inside: tuple[object, ...] = (),
        depth: int = 0,
        again: dict[object, Again] | None = None,
    ) -> None:
        self._where = where
        self._inside = inside
        self._depth = depth
        self.again: dict[object, Again] = {} if again is None else again

    def shape(self, kind: Any) -> Shape:
        if self._depth > DEEPEST:
            raise self._refused(kind, f"types are nested more than {DEEPEST} levels deep")
        if kind is None:
            return SCALARS[type(None)]
        if isinstance(kind, type) and kind in SCALARS:
            return SCALARS[kind]
        if isinstance(kind, type) and kind in _MOMENTS:
            return _MOMENTS[kind]
        if kind is Any or kind is object:
            return Anything()
        origin = typing.get_origin(kind)
        if origin is not None:
            return self._generic(kind, origin, typing.get_args(kind))
        if kind in (*_LISTS, tuple):
            return Array(Anything(), _LISTS.get(kind, tuple))
        if kind in _DICTS:
            return Table(Anything())
        return self._named(kind)

    def definitions(self) -> dict[str, Any]:
        """What references in a schema stand for, as a part of it."""
        return {"$defs": {one.name: one.inner.schema() for one in self.again.values()}} if self.again else {}

    def field(self, name: str, kind: object, default: object) -> Field:
        return Field(name, self._at(f".{name}").shape(kind), default is ..., default)

    def _at(self, step: str = "", inside: object = None) -> _Reader:
        within = self._inside if inside is None else (*self._inside, inside)
        return _Reader(self._where + step, within, self._depth + 1, self.again)

    def _refused(self, kind: object, reason: str = "") -> UnsupportedType:
        shown = kind.__name__ if isinstance(kind, type) else str(kind)
        place = f" ({self._where})" if self._where else ""
        return UnsupportedType(f"{shown}{place} cannot be read from JSON: {reason or f'there are {SUPPORTED}'}")

    # ---- list[int] ----

    def _generic(self, kind: Any, origin: Any, args: tuple[Any, ...]) -> Shape:
        inner = self._at()
        if origin is typing.Annotated:
            shape, told = inner.shape(args[0]), [one for one in args[1:] if isinstance(one, str)]
            return Described(shape, {"description": told[0]}) if told else shape
        if origin in (typing.Union, types.UnionType):
            return Union([inner.shape(one) for one in args])
        if origin is typing.Literal:
            return OneValue([(one, one) for one in args])
        if origin in _LISTS:
            return Array(self._at("[]").shape(args[0]), _LISTS[origin])
        if origin in _DICTS:
            if args[0] is not str:
                raise self._refused(kind, "keys of JSON objects are str")
            return Table(self._at("[]").shape(args[1]))
        if origin is tuple:
            return self._tuple(args)
        if origin in (typing.Required, typing.NotRequired) or getattr(origin, "_name", "") == "ReadOnly":
            return inner.shape(args[0])
        raise self._refused(kind)

    def _tuple(self, args: tuple[Any, ...]) -> Shape:
        if len(args) == 2 and args[1] is ...:
            return Array(self._at("[]").shape(args[0]), tuple)
        return Tuple([self._at(f"[{place}]").shape(one) for place, one in enumerate(args)])

    # ---- types with a name ----

    def _named(self, kind: Any) -> Shape:
        if kind in self._inside:
            names = {one.name for one in self.again.values()}
            name = kind.__name__ if kind.__name__ not in names else f"{kind.__name__}{len(names) + 1}"
            return self.again.setdefault(kind, Again(name))
        shape = self._of_name(kind)
        if kind in self.again:
            self.again[kind].inner = shape
        return shape

    def _of_name(self, kind: Any) -> Shape:
        if type(kind).__name__ == "TypeAliasType":  # `type Name = ...`
            return self._at(inside=kind).shape(kind.__value__)
        if isinstance(kind, typing.NewType):
            return self._at().shape(kind.__supertype__)
        if isinstance(kind, enum.EnumMeta):
            return self._enum(kind)
        if typing.is_typeddict(kind):
            return self._typed_dict(kind)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            return self._dataclass(kind)
        if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_field_defaults"):
            return self._named_tuple(kind)
        raise self._refused(kind)

    def _enum(self, kind: Any) -> Shape:
        for member in kind:
            if type(member.value) not in (str, int, bool):
                raise self._refused(kind, f"the value of {member.name} is neither a str nor an int")
        return OneValue([(member.value, member) for member in kind])

    def _dataclass(self, kind: type) -> Shape:
        return self._record(kind, {f.name: _default(f) for f in dataclasses.fields(kind) if f.init})

    def _named_tuple(self, kind: Any) -> Shape:
        return self._record(kind, {name: kind._field_defaults.get(name, ...) for name in kind._fields})

    def _typed_dict(self, kind: Any) -> Shape:
        hints = self._hints(kind)
        optional = {name for name in hints if not _is_required(kind, name, hints[name])}
        return self._record(kind, {name: _LEFT_OUT if name in optional else ... for name in hints}, make=dict)

    def _record(self, kind: Any, defaults: Mapping[str, object], make: Callable[..., Any] | None = None) -> Shape:
        hints = self._hints(kind)
        inner = self._at(inside=kind)
        inner._where = kind.__name__
        fields = [inner.field(name, hints.get(name, Any), default) for name, default in defaults.items()]
        told = (kind.__doc__ or "").strip()
        described = told if told and not told.startswith((f"{kind.__name__}(", "dict(")) else ""
        return Record(kind.__name__, fields, make or (lambda values: kind(**values)), described)

    def _hints(self, kind: Any) -> dict[str, Any]:
        try:
            return typing.get_type_hints(kind, include_extras=True)
        except (NameError, TypeError, SyntaxError) as error:
            raise self._refused(kind, f"its annotations cannot be read: {error}") from None


_LEFT_OUT = types.SimpleNamespace()
"""The default of what may be missing from a TypedDict."""


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    return ... if field.default_factory is dataclasses.MISSING else _LEFT_OUT


def _is_required(kind: Any, name: str, hint: object) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Required, typing.NotRequired):
        return origin is typing.Required
    return name in kind.__required_keys__
