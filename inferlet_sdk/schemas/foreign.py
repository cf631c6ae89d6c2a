"""JSON Schemas that others have written, as shapes: what a value must keep to, and the schema as a model is told it.

Read are `type`, `enum`, `const`, `properties`, `patternProperties`, `required`, `additionalProperties`, `items`,
`anyOf`, `oneOf` (as `anyOf`), `allOf` and references within the schema; where a schema contains itself, anything goes.
All other keywords are passed on, and not looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from inferlet_sdk.schemas.mismatch import Path, UnsupportedType, mismatch, shown_path, told
from inferlet_sdk.schemas.shapes import Anything, Array, Field, OneValue, Record, Shape, Union, takes
from inferlet_sdk.schemas.types import SCALARS

DEEPEST = 32
"""Levels of schemas within schemas."""
MOST_PARTS = 5000
"""Lists and objects of one schema, with what its references stand for."""

_SCALARS = {shape.name: shape for shape in SCALARS.values()}
_KINDS = (*_SCALARS, "array", "object")
DEFINITIONS = ("$defs", "definitions")
NAMES = ("properties", "patternProperties", "dependentSchemas")
"""Keywords of an object whose keys are names."""
DATA = ("const", "default", "enum", "examples")
"""Keywords whose values are data, whatever these look like."""
_MORE = ("allOf", "anyOf", "oneOf", "patternProperties", "$dynamicRef")
"""Keywords of an object that may describe keys beside its `properties`."""


@dataclass(frozen=True)
class Foreign:
    """A schema of somebody else. A value that all of `parts` take stays as it is."""

    told: Mapping[str, Any]
    parts: Sequence[Shape]

    @property
    def wanted(self) -> str:
        return self.parts[0].wanted if self.parts else "anything"

    def schema(self) -> dict[str, Any]:
        return dict(self.told)

    def read(self, value: Any, path: Path) -> Any:
        for part in self.parts:
            part.read(value, path)
        return value


@dataclass(frozen=True)
class _Values(OneValue):
    """Values of `enum` or `const`. Numbers are equal by their value, as 1 and 1.0."""

    def read(self, value: Any, path: Path) -> Any:
        if not any(_equal(value, known) for known, _ in self.values):
            raise mismatch(path, self.wanted, value)
        return value


@dataclass(frozen=True)
class _Object(Record):
    """An object as somebody else describes it. A key that none of the fields has is read by each pattern that is in it,
    and by `rest` if there is none."""

    told: Mapping[str, Any] = field(default_factory=dict)
    patterns: Sequence[tuple[re.Pattern[str], Shape]] = ()

    def schema(self) -> dict[str, Any]:
        return dict(self.told)

    def further(self, key: str) -> Shape | None:
        found = [shape for pattern, shape in self.patterns if pattern.search(key)]
        return Foreign({}, found) if found else self.rest


def foreign_shape(schema: object) -> Shape:
    """What a JSON Schema takes. Raises UnsupportedType, which says where and why it is none, or none that any value can
    keep to."""
    return _shape(_Expander(schema).expand(schema, (), ()), ())


def foreign_record(name: str, schema: object) -> Record:
    """The parameters of a function by the schema of its arguments, which must be of type object. Arguments that are
    none of its `properties` are refused, unless the schema says that there may be some: by `additionalProperties`, or
    by a keyword that can describe more of them, such as `allOf`. Raises UnsupportedType."""
    expanded = _Expander(schema).expand(schema, (), ())
    if not isinstance(expanded, dict) or expanded.get("type") != "object":
        kind = expanded.get("type") if isinstance(expanded, dict) else expanded
        raise _refused((), f'the type of arguments must be "object", not {told(kind)}')
    closed = {} if any(word in expanded for word in _MORE) else {"additionalProperties": False}
    _shape(expanded, ())  # which refuses what is no schema
    parts = Foreign({}, _combined(expanded, ()))
    named = {**closed, **expanded, "properties": properties_of(expanded)}
    return _record(name, named, (), lambda values: parts.read(values, ()))


def properties_of(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The schema of each property of an object by itself, with what references in it stand for; also of those that
    only parts of the object's schema name."""
    shared, own = shared_by(schema), schema.get("properties")
    found: dict[str, list[Mapping[str, Any]]] = {}
    for part in parts_of(schema, ("allOf", "anyOf", "oneOf"), set()):
        properties = part.get("properties")
        for name, one in properties.items() if isinstance(properties, Mapping) else ():
            known, one = found.setdefault(name, []), one if isinstance(one, Mapping) else {}
            if one not in known and (part is schema or not isinstance(own, Mapping) or name not in own):
                known.append(one)
    return {name: {**shared, **(ones[0] if len(ones) == 1 else {"anyOf": ones})} for name, ones in found.items()}


def shared_by(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What references in a schema may stand for."""
    return {name: schema[name] for name in DEFINITIONS if isinstance(schema.get(name), Mapping)}


def referred_by(schema: Mapping[str, Any]) -> list[Any]:
    """What a reference stands for, if there is one to the definitions of the schema."""
    kind, _, name = str(schema.get("$ref", "")).removeprefix("#/").partition("/")
    known = schema[kind] if kind in shared_by(schema) else {}
    return [known[name]] if name in known else []


def parts_of(schema: Mapping[str, Any], keywords: Sequence[str], seen: set[str]) -> Iterator[Mapping[str, Any]]:
    """A schema, and those of which it is made by references and by these keywords; what a reference of `seen` stands
    for has come before."""
    yield schema
    shared, referred, reference = shared_by(schema), referred_by(schema), str(schema.get("$ref"))
    parts = referred if reference not in seen else []
    seen.add(reference)
    for listed in (schema.get(keyword) for keyword in keywords):
        parts += listed if isinstance(listed, list) else []
    for part in parts:
        if isinstance(part, Mapping):
            yield from parts_of({**shared, **part}, keywords, seen)


def _refused(path: Path, reason: str) -> UnsupportedType:
    return UnsupportedType(f"{shown_path(path)}: {reason}")


class _Expander:
    """Puts what they stand for in place of references, which mean nothing where a part of the schema is used."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._parts = 0

    def expand(self, value: Any, path: Path, inside: tuple[str, ...], is_names: bool = False) -> Any:
        """`is_names`: the keys are names that the schema gives, and no keywords."""
        if not isinstance(value, dict | list):
            return value
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise _refused(path, f"the schema has more than {MOST_PARTS} parts")
        if len(path) > 2 * DEEPEST:
            raise _refused(path, f"schemas are nested more than {DEEPEST} levels deep")
        if isinstance(value, list):
            return [self.expand(one, (*path, place), inside) for place, one in enumerate(value)]
        if not path:
            value = {key: one for key, one in value.items() if key not in ("$schema", "$id", *DEFINITIONS)}
        reference = value.get("$ref")
        if isinstance(reference, str):
            if reference in ("#", *inside):
                return {}
            target = self._target(reference, path)
            beside = {key: one for key, one in value.items() if key != "$ref"}
            merged = {**target, **beside} if isinstance(target, dict) else target
            return self.expand(merged, path, (*inside, reference))
        return {
            key: one
            if key in DATA and not is_names
            else self.expand(one, (*path, key), inside, key in NAMES and not is_names)
            for key, one in value.items()
        }

    def _target(self, reference: str, path: Path) -> Any:
        found: Any = self._root
        if not reference.startswith("#/"):
            raise _refused(path, f"{told(reference)} is not within the schema: only what begins with #/ can be read")
        for step in unquote(reference[2:]).split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                raise _refused(path, f"{told(reference)} is nowhere in the schema")
        return found


def _shape(schema: Any, path: Path) -> Shape:
    if schema is True:
        return Anything()
    if schema is False:
        raise _refused(path, "false takes no value at all")
    if not isinstance(schema, dict):
        raise _refused(path, f"expected a JSON Schema, got {told(schema)}")
    if not isinstance(schema.get("description", ""), str):
        raise _refused((*path, "description"), f"expected a string, got {told(schema['description'])}")
    of_type = _of_type(schema, path)
    values = _values(schema, path)
    if values is not None and of_type is not None and not any(takes(of_type, value) for value in values):
        raise _refused(path, f"none of its values ({told(values)}) is of its type")
    parts: list[Shape] = [_Values([(value, value) for value in values])] if values is not None else []
    parts += [of_type] if of_type is not None else []
    return Foreign(schema, parts + _combined(schema, path))


def _combined(schema: Mapping[str, Any], path: Path) -> list[Shape]:
    """What a value must keep to beside its type."""
    parts: list[Shape] = [Union(_shapes(schema[key], (*path, key))) for key in ("anyOf", "oneOf") if key in schema]
    return parts + (_shapes(schema["allOf"], (*path, "allOf")) if "allOf" in schema else [])


def _shapes(schemas: Any, path: Path) -> list[Shape]:
    if not isinstance(schemas, list) or not schemas:
        raise _refused(path, f"expected a list of schemas, got {told(schemas)}")
    return [_shape(one, (*path, place)) for place, one in enumerate(schemas)]


def _values(schema: Mapping[str, Any], path: Path) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    if "enum" not in schema:
        return None
    values = schema["enum"]
    if not isinstance(values, list) or not values:
        raise _refused((*path, "enum"), f"expected a list of values, got {told(values)}")
    return values


def _of_type(schema: Mapping[str, Any], path: Path) -> Shape | None:
    kinds = schema.get("type", "object" if "properties" in schema else [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or (not kinds and "type" in schema):
        raise _refused((*path, "type"), f"expected the name of a type or several, got {told(schema['type'])}")
    for kind in kinds:
        if kind not in _KINDS:
            raise _refused((*path, "type"), f"{told(kind)} is no type: there are {', '.join(_KINDS)}")
    shapes = [_of_kind(kind, schema, path) for kind in kinds]
    if not shapes:
        return None
    return shapes[0] if len(shapes) == 1 else Union(shapes)


def _of_kind(kind: str, schema: Mapping[str, Any], path: Path) -> Shape:
    if kind == "object":
        return _record("", schema, path)
    if kind == "array":
        items = schema.get("items", True)
        return Array(Anything() if isinstance(items, bool | list) else _shape(items, (*path, "items")), list)
    return _SCALARS[kind]


def _record(name: str, schema: Mapping[str, Any], path: Path, make: Callable[[dict[str, Any]], Any] = dict) -> _Object:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise _refused((*path, "properties"), f"expected an object, got {told(properties)}")
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        raise _refused((*path, "required"), f"expected a list of names, got {told(required)}")
    rest = schema.get("additionalProperties", True)
    others = None if rest is False else _shape(rest, (*path, "additionalProperties"))
    patterns = _patterns(schema.get("patternProperties", {}), (*path, "patternProperties"))
    missing = [one for one in required if one not in properties]
    if missing and others is None and not patterns:
        raise _refused((*path, "required"), f"{json.dumps(missing[0])} is required, and is none of the properties")
    fields = [Field(key, _shape(one, (*path, "properties", key)), key in required) for key, one in properties.items()]
    found = _Object(name, fields, make, rest=others, told=schema, patterns=patterns)
    return replace(found, fields=fields + [Field(key, found.further(key) or Anything(), True) for key in missing])


def _patterns(patterns: Any, path: Path) -> list[tuple[re.Pattern[str], Shape]]:
    if not isinstance(patterns, dict):
        raise _refused(path, f"expected an object, got {told(patterns)}")
    found = []
    for text, schema in patterns.items():
        try:
            found.append((re.compile(text), _shape(schema, (*path, text))))
        except (re.error, RecursionError, OverflowError) as error:
            raise _refused((*path, text), f"no pattern that can be read: {error}") from None
    return found


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
