"""What annotations mean: each shape knows its JSON Schema, and reads a JSON value into an instance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import Any, Protocol

from inferlet_sdk.schemas.mismatch import Path, SchemaMismatch, mismatch, told

_LEAP = re.compile(r"(?<=:\d\d):60")
"""A second that Python has not. JSON Schema has it, as small letters (RFC 3339), so a model may write both."""


class Shape(Protocol):
    """The meaning of an annotation."""

    @property
    def wanted(self) -> str:
        """What it takes, for messages: "a number"."""

    def schema(self) -> dict[str, Any]:
        """Its JSON Schema."""

    def read(self, value: Any, path: Path) -> Any:
        """The instance for a JSON value; raises SchemaMismatch."""


def takes(shape: Shape, value: object) -> bool:
    """Whether a value is one of a shape."""
    try:
        shape.read(value, ())
    except SchemaMismatch:
        return False
    return True


@dataclass(frozen=True)
class Anything:
    """`Any`: a JSON value as it is."""

    wanted: str = "anything"

    def schema(self) -> dict[str, Any]:
        return {}

    def read(self, value: Any, path: Path) -> Any:
        return value


@dataclass(frozen=True)
class Scalar:
    """`str`, `bool`, `int`, `float` or None."""

    kind: type
    name: str
    wanted: str

    def schema(self) -> dict[str, Any]:
        return {"type": self.name}

    def read(self, value: Any, path: Path) -> Any:
        if type(value) is self.kind:
            return value
        try:
            if self.kind is float and type(value) is int:
                return float(value)
        except OverflowError:
            raise SchemaMismatch(f"the number is too large: {told(value)}", path) from None
        if self.kind is int and type(value) is float and value.is_integer():
            return int(value)  # JSON Schema: 1.0 is an integer
        raise mismatch(path, self.wanted, value)


@dataclass(frozen=True)
class Moment:
    """`datetime`, `date` or `time`: text in ISO 8601."""

    kind: type[date] | type[time]
    name: str
    wanted: str

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": self.name}

    def read(self, value: Any, path: Path) -> Any:
        try:
            return self.kind.fromisoformat(_LEAP.sub(":59", value.upper()))
        except (AttributeError, ValueError):
            raise mismatch(path, self.wanted, value) from None


@dataclass(frozen=True)
class OneValue:
    """A `Literal` or an `Enum`: one of some values, each with what it means."""

    values: Sequence[tuple[Any, Any]]

    @property
    def wanted(self) -> str:
        return "one of " + ", ".join(told(value) for value, _ in self.values)

    def schema(self) -> dict[str, Any]:
        values = [value for value, _ in self.values]
        names = {"string": str, "integer": int, "boolean": bool}
        kinds = [name for name, kind in names.items() if all(type(value) is kind for value in values)]
        return {"type": kinds[0], "enum": values} if kinds else {"enum": values}

    def read(self, value: Any, path: Path) -> Any:
        for known, meaning in self.values:
            if type(known) is type(value) and known == value:
                return meaning
        raise mismatch(path, self.wanted, value)


@dataclass(frozen=True)
class Array:
    """`list[T]`, `set[T]`, `frozenset[T]` and `tuple[T, ...]`."""

    item: Shape
    make: Callable[[list[Any]], Any]
    wanted: str = "a list"

    def schema(self) -> dict[str, Any]:
        items = self.item.schema()
        return {"type": "array", "items": items} if items else {"type": "array"}

    def read(self, value: Any, path: Path) -> Any:
        if type(value) is not list:
            raise mismatch(path, self.wanted, value)
        if isinstance(self.item, Scalar) and set(map(type, value)) <= {self.item.kind}:
            items = value  # as below, at once
        else:
            items = [self.item.read(one, (*path, place)) for place, one in enumerate(value)]
        try:
            return self.make(items)
        except TypeError as error:
            raise SchemaMismatch(f"no set can be made of these: {error}", path) from None


@dataclass(frozen=True)
class Tuple:
    """`tuple[A, B]`: a list of so many values, each of its own type."""

    items: Sequence[Shape]

    @property
    def wanted(self) -> str:
        return f"a list of {len(self.items)}"

    def schema(self) -> dict[str, Any]:
        count = len(self.items)
        shown = {"prefixItems": [item.schema() for item in self.items]} if self.items else {}
        return {"type": "array", **shown, "items": False, "minItems": count, "maxItems": count}

    def read(self, value: Any, path: Path) -> Any:
        if type(value) is not list or len(value) != len(self.items):
            raise mismatch(path, self.wanted, value)
        return tuple(
            item.read(one, (*path, place)) for place, (item, one) in enumerate(zip(self.items, value, strict=True))
        )


@dataclass(frozen=True)
class Table:
    """`dict[str, T]`."""

    item: Shape
    wanted: str = "an object"

    def schema(self) -> dict[str, Any]:
        items = self.item.schema()
        return {"type": "object", "additionalProperties": items} if items else {"type": "object"}

    def read(self, value: Any, path: Path) -> Any:
        if type(value) is not dict:
            raise mismatch(path, self.wanted, value)
        return {key: self.item.read(one, (*path, key)) for key, one in value.items()}


@dataclass(frozen=True)
class Union:
    """`A | B`: the first that takes the value."""

    options: Sequence[Shape]

    @property
    def wanted(self) -> str:
        return " or ".join(dict.fromkeys(option.wanted for option in self.options))

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [option.schema() for option in self.options]}

    def read(self, value: Any, path: Path) -> Any:
        errors = []
        for option in self.options:
            try:
                return option.read(value, path)
            except SchemaMismatch as error:
                errors.append(error)
        deeper = [error for error in errors if len(error.path) > len(path)]
        raise deeper[0] if len(deeper) == 1 else mismatch(path, self.wanted, value)


@dataclass(frozen=True)
class Described:
    """A shape of which the schema says more: a description, from `Annotated`, or what references in it stand for."""

    inner: Shape
    more: Mapping[str, Any]

    @property
    def wanted(self) -> str:
        return self.inner.wanted

    def schema(self) -> dict[str, Any]:
        return {**self.inner.schema(), **self.more}

    def read(self, value: Any, path: Path) -> Any:
        return self.inner.read(value, path)


class Again:
    """A type within itself, as a reference to it. `inner` is what it means, as soon as all of the type is read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inner: Shape = Anything()

    @property
    def wanted(self) -> str:
        return self.inner.wanted

    def schema(self) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{self.name}"}

    def read(self, value: Any, path: Path) -> Any:
        return self.inner.read(value, path)


@dataclass(frozen=True)
class Field:
    """A key of a record. `default` is told in the schema, if it is a plain value."""

    name: str
    shape: Shape
    required: bool
    default: Any = ...

    def schema(self) -> dict[str, Any]:
        known = self.default is not ... and _is_plain(self.default)
        return {**self.shape.schema(), "default": self.default} if known else self.shape.schema()


@dataclass(frozen=True)
class Record:
    """A dataclass, TypedDict, NamedTuple, or the parameters of a function; `make` takes its values by name. `rest`:
    what further keys have; None: there may be none. `more`: of its schema, if there is more."""

    name: str
    fields: Sequence[Field]
    make: Callable[[dict[str, Any]], Any]
    description: str = ""
    rest: Shape | None = None
    more: Mapping[str, Any] | None = None

    @property
    def wanted(self) -> str:
        return f"an object ({self.name})" if self.name else "an object"

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object"}
        if self.description:
            schema["description"] = self.description
        schema["properties"] = {field.name: field.schema() for field in self.fields}
        required = [field.name for field in self.fields if field.required]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False if self.rest is None else self.rest.schema()
        return {**schema, **(self.more or {})}

    def further(self, key: str) -> Shape | None:
        """What a key that is none of the fields has; None: there may be no such key."""
        return self.rest

    def read(self, value: Any, path: Path) -> Any:
        if type(value) is not dict:
            raise mismatch(path, self.wanted, value)
        self._check_keys(value, path)
        values = {f.name: f.shape.read(value[f.name], (*path, f.name)) for f in self.fields if f.name in value}
        for key, one in value.items():
            if key not in values and (shape := self.further(key)) is not None:
                values[key] = shape.read(one, (*path, key))
        try:
            return self.make(values)
        except SchemaMismatch:
            raise
        except Exception as error:  # what the type itself checks, as in `__post_init__`
            why = str(error) or type(error).__name__
            raise SchemaMismatch(f"{self.name} refuses it: {why}", path) from error

    def _check_keys(self, value: Mapping[str, Any], path: Path) -> None:
        names = [field.name for field in self.fields]
        for field in self.fields:
            if field.required and field.name not in value:
                raise SchemaMismatch(f"{json.dumps(field.name)} is missing: expected {field.shape.wanted}", path)
        for key in value:
            if key not in names and self.further(key) is None:
                known = f"there are {', '.join(names)}" if names else "there are none"
                raise SchemaMismatch(f"no such key{f' of {self.name}' if self.name else ''}; {known}", (*path, key))


def _is_plain(value: object) -> bool:
    return value is None or type(value) in (str, int, float, bool)
