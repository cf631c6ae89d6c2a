"""JSON Schemas that others have written."""

from __future__ import annotations

from typing import Any

import pytest

from inferlet_sdk import SchemaMismatch, UnsupportedType
from inferlet_sdk.schemas.foreign import MOST_PARTS, foreign_record, foreign_shape

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "number", "minimum": 0}},
    "required": ["x"],
}
CLOSED = {"additionalProperties": False}
LINE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"a/b": POINT, "points": {"type": "array", "items": {"$ref": "#/$defs/a~1b"}}},
    "type": "object",
    "properties": {"points": {"$ref": "#/$defs/points", "description": "its ends"}},
    "required": ["points"],
}

TREE = {
    "$defs": {"Tree": {"properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}, "required": ["a"]}},
    "$ref": "#/$defs/Tree",
}


@pytest.mark.parametrize(
    ("schema", "takes", "refuses"),
    [
        ({}, [1, None, {"a": []}], []),
        (True, [1], []),
        ({"type": "string", "pattern": "a"}, ["", "x"], [1, None]),
        ({"type": "integer"}, [1, 1.0], [1.5, True, "1"]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"enum": ["a", 1, [2]]}, ["a", 1, [2]], ["b", 1.5, [3]]),
        ({"const": {"a": 1}}, [{"a": 1}, {"a": 1.0}], [{"a": 2}, {"a": True}, {}]),
        ({"enum": [1.0, 0, [2]]}, [1, 0.0, [2.0]], [True, False, "1", [2, 3], []]),
        ({"default": {"$ref": "#/nowhere"}, "enum": [{"$ref": "a"}]}, [{"$ref": "a"}], [1]),
        (
            {"properties": {"enum": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "null"}}},
            [{"enum": None}],
            [{"enum": 1}],
        ),
        ({"type": "array", "items": {"type": "boolean"}}, [[], [True]], [[1], {}]),
        ({"type": "array"}, [[1, "a"]], ["a"]),
        (POINT, [{"x": 1}, {"x": 1, "y": 0.5, "z": "further"}], [{}, {"x": "1"}, []]),
        ({**POINT, "additionalProperties": False}, [{"x": 1}], [{"x": 1, "z": 2}]),
        ({**POINT, "additionalProperties": {"type": "null"}}, [{"x": 1, "z": None}], [{"x": 1, "z": 2}]),
        ({"anyOf": [{"type": "string"}, POINT]}, ["a", {"x": 1}], [1, {}]),
        ({"oneOf": [{"type": "string"}, {"const": 1}]}, ["a", 1], [2]),
        (
            {"allOf": [POINT], "properties": {"z": {"type": "string"}}},
            [{"x": 1, "z": ""}],
            [{"z": ""}, {"x": 1, "z": 1}],
        ),
        ({"required": ["a"], "type": "object"}, [{"a": 1}], [{}]),
        (
            {"type": "object", "patternProperties": {"^x-": {"type": "string"}, "n$": {"const": "1"}}, **CLOSED},
            [{}, {"x-a": ""}, {"x-n": "1"}],
            [{"a": ""}, {"x-a": 1}, {"x-n": "2"}],
        ),
        (LINE, [{"points": [{"x": 1}]}], [{"points": [{}]}]),
        (TREE, [{"a": [{"a": []}]}, {"a": [{"a": [1]}]}], [{"a": 1}, {}]),
        ({"type": "array", "items": {"$ref": "#"}}, [[], [1]], [1]),
    ],
)
def test_a_schema_takes_what_it_says(schema: Any, takes: list[Any], refuses: list[Any]) -> None:
    shape = foreign_shape(schema)
    for value in takes:
        assert shape.read(value, ()) is value
    for value in refuses:
        with pytest.raises(SchemaMismatch):
            shape.read(value, ())


def test_a_model_is_told_the_schema_without_references() -> None:
    record = foreign_record("draw", LINE)
    told = record.schema()
    assert told["properties"] == {"points": {"type": "array", "items": POINT, "description": "its ends"}}
    assert (told["required"], told["additionalProperties"]) == (["points"], False)


def test_arguments_that_do_not_fit_are_told_where() -> None:
    record = foreign_record("draw", LINE)
    with pytest.raises(SchemaMismatch, match=r'\$.points\[1\].x: expected an integer, got "1"'):
        record.read({"points": [{"x": 1}, {"x": "1"}]}, ())
    with pytest.raises(SchemaMismatch, match=r"\$.colour: no such key of draw; there are points"):
        record.read({"points": [], "colour": "red"}, ())
    free = foreign_record("free", {"type": "object", "additionalProperties": {"type": "string"}})
    assert free.read({"a": "b"}, ()) == {"a": "b"}
    assert free.schema()["additionalProperties"] == {"type": "string"}
    assert foreign_record("none", {"type": "object"}).schema() == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


A, B = ({"properties": {key: {"type": kind}}, "required": [key]} for key, kind in (("a", "integer"), ("b", "string")))


@pytest.mark.parametrize(
    ("told", "takes", "refuses"),
    [
        ({"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": A}}, [{"a": 1}, {"a": 1, "c": 2}], [{}, {"a": "1"}]),
        ({"oneOf": [A, B]}, [{"a": 1}, {"b": "1"}], [{}, {"a": "1"}]),
        ({"anyOf": [A, B], **CLOSED}, [{"a": 1}, {"b": "1"}], [{}, {"a": 1, "c": 1}]),
        ({"patternProperties": {"^x-": {"type": "string"}}, **CLOSED}, [{"x-a": ""}], [{"x-a": 1}, {"a": ""}]),
        ({"patternProperties": {"^x-": A}, "required": ["x-a"], **CLOSED}, [{"x-a": {"a": 1}}], [{}, {"x-a": {}}]),
    ],
)
def test_arguments_may_be_described_by_parts(told: Any, takes: list[Any], refuses: list[Any]) -> None:
    record = foreign_record("tool", {"type": "object", **told})
    for value in takes:
        assert record.read(value, ()) == value
    for value in refuses:
        with pytest.raises(SchemaMismatch):
            record.read(value, ())


def test_a_model_is_told_the_parts_and_what_they_name() -> None:
    schema = foreign_record("tool", {"type": "object", "title": "T", "oneOf": [A, B]}).schema()
    assert schema == {
        "type": "object",
        "title": "T",
        "oneOf": [A, B],
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    }


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


LAUGHS = {
    "$defs": {"l0": {"type": "string"}}
    | {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n - 1}"}] * 10} for n in range(1, 10)},
    "$ref": "#/$defs/l9",
}


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("text", r'\$: expected a JSON Schema, got "text"'),
        (None, r"\$: expected a JSON Schema, got null"),
        (False, r"\$: false takes no value"),
        ({"type": "objekt"}, r'\$.type: "objekt" is no type: there are string'),
        ({"type": []}, r"\$.type: expected the name of a type"),
        ({"type": [{}]}, r"\$.type: {} is no type"),
        ({"type": 1}, r"\$.type: expected the name of a type or several, got 1"),
        ({"enum": []}, r"\$.enum: expected a list of values"),
        ({"type": "string", "enum": [1, 2]}, r"\$: none of its values \(\[1, 2\]\) is of its type"),
        ({"type": "object", "properties": []}, r"\$.properties: expected an object"),
        (
            {"properties": {"a": {"type": "string", "description": 1}}},
            r"\$.properties.a.description: expected a string",
        ),
        ({"type": "object", "required": "a"}, r"\$.required: expected a list of names"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, r'\$.required: "a" is required, and is'),
        ({"type": "object", "additionalProperties": 1}, r"\$.additionalProperties: expected a JSON Schema"),
        ({"type": "array", "items": 1}, r"\$.items: expected a JSON Schema, got 1"),
        ({"type": "object", "patternProperties": {"(": {}}}, r"\$.patternProperties\[.*\]: no pattern that can be"),
        ({"type": "object", "patternProperties": 1}, r"\$.patternProperties: expected an object, got 1"),
        ({"anyOf": []}, r"\$.anyOf: expected a list of schemas"),
        ({"allOf": [1]}, r"\$.allOf\[0\]: expected a JSON Schema"),
        ({"$ref": "https://example.com/a"}, "is not within the schema"),
        ({"$ref": "#/$defs/a"}, "is nowhere in the schema"),
        (LAUGHS, f"more than {MOST_PARTS} parts"),
        (deep(100), "nested more than 32 levels deep"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, told: str) -> None:
    with pytest.raises(UnsupportedType, match=told):
        foreign_shape(schema)


@pytest.mark.parametrize("schema", [None, {}, {"type": "string"}, {"type": ["object"]}, True, []])
def test_arguments_are_an_object(schema: Any) -> None:
    with pytest.raises(UnsupportedType, match='the type of arguments must be "object"'):
        foreign_record("tool", schema)


def test_arguments_that_are_required_are_known() -> None:
    with pytest.raises(UnsupportedType, match=r'\$.required: "town" is required, and is none of the properties'):
        foreign_record("tool", {"type": "object", "properties": {"city": {}}, "required": ["town"]})
    with pytest.raises(UnsupportedType, match=r"\$.properties: expected an object"):
        foreign_record("tool", {"type": "object", "properties": []})
