"""Annotations to JSON Schema, and JSON to instances: everything that is supported, refusals that name the place."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlet_sdk import SchemaMismatch, Truncated, UnsupportedType, from_json, json_schema
from inferlet_sdk.schemas import JsonScanner


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Place(NamedTuple):
    x: int
    y: int = 0


class Note(TypedDict):
    text: str
    author: NotRequired[str]


@dataclass
class Item:
    """Something to buy."""

    name: str
    price: Annotated[float, "in euros"]
    colour: Colour = Colour.RED
    tags: list[str] = field(default_factory=list)
    hidden: int = field(default=7, init=False)


@dataclass
class Order:
    items: list[Item]
    note: Note | None = None
    where: tuple[int, int] = (0, 0)


@dataclass
class Positive:
    value: int

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError("it must be above 0")


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)
    beside: Annotated[Tree | None, "or none"] = None


@dataclass
class Unknown:
    thing: Nowhere  # type: ignore[name-defined]  # noqa: F821


Price = NewType("Price", float)

KINDS: list[tuple[Any, dict[str, Any], str, Any]] = [
    (str, {"type": "string"}, '"a"', "a"),
    (int, {"type": "integer"}, "3", 3),
    (int, {"type": "integer"}, "3.0", 3),
    (float, {"type": "number"}, "3", 3.0),
    (bool, {"type": "boolean"}, "true", True),
    (None, {"type": "null"}, "null", None),
    (Any, {}, '{"a": [1]}', {"a": [1]}),
    (Price, {"type": "number"}, "2.5", 2.5),
    (list, {"type": "array"}, '[1, "a"]', [1, "a"]),
    (list[int], {"type": "array", "items": {"type": "integer"}}, "[1]", [1]),
    (Sequence[int], {"type": "array", "items": {"type": "integer"}}, "[1]", [1]),
    (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}, "[1, 2]", (1, 2)),
    (
        tuple[int, str],
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "items": False,
            "minItems": 2,
            "maxItems": 2,
        },
        '[1, "a"]',
        (1, "a"),
    ),
    (dict, {"type": "object"}, '{"a": 1}', {"a": 1}),
    (
        Mapping[str, list[int]],
        {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
        '{"a": [1]}',
        {"a": [1]},
    ),
    (Literal["yes", "no"], {"type": "string", "enum": ["yes", "no"]}, '"no"', "no"),
    (Literal["yes", 1], {"enum": ["yes", 1]}, "1", 1),
    (Colour, {"type": "string", "enum": ["red", "blue"]}, '"blue"', Colour.BLUE),
    (Level, {"type": "integer", "enum": [1, 2]}, "2", Level.HIGH),
    (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),  # noqa: UP045
    (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, '"a"', "a"),
    (Annotated[int, "years"], {"type": "integer", "description": "years"}, "3", 3),
    (
        Place,
        {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
            "required": ["x"],
            "additionalProperties": False,
        },
        '{"x": 4}',
        Place(4, 0),
    ),
    (
        Note,
        {
            "type": "object",
            "properties": {"text": {"type": "string"}, "author": {"type": "string"}},
            "required": ["text"],
            "additionalProperties": False,
        },
        '{"text": "a"}',
        {"text": "a"},
    ),
]


@pytest.mark.parametrize(("kind", "schema", "text", "value"), KINDS, ids=lambda one: str(one)[:30])
def test_a_type_has_a_schema_and_reads_json(kind: Any, schema: dict[str, Any], text: str, value: Any) -> None:
    assert json_schema(kind) == schema
    read = from_json(text, kind)
    assert (read, type(read)) == (value, type(value))


def test_dataclasses_nest() -> None:
    schema = json_schema(Order)
    item = schema["properties"]["items"]["items"]
    assert item["description"] == "Something to buy."
    assert item["required"] == ["name", "price"]
    assert item["properties"]["price"] == {"type": "number", "description": "in euros"}
    assert "hidden" not in item["properties"]
    assert "description" not in schema, "a dataclass without a docstring has its signature there"
    text = '{"items": [{"name": "pen", "price": 2, "colour": "blue"}], "note": {"text": "now"}, "where": [1, 2]}'
    order = from_json(text, Order)
    assert order == Order([Item("pen", 2.0, Colour.BLUE)], {"text": "now"}, (1, 2))
    json.dumps(schema)


WRONG: list[tuple[Any, str, str]] = [
    (Order, '{"items": [{"name": "a", "price": "x"}]}', '$.items[0].price: expected a number, got "x"'),
    (Order, '{"items": [{"name": "a"}]}', '$.items[0]: "price" is missing: expected a number'),
    (Order, '{"items": [], "x y": 1}', '$["x y"]: no such key of Order; there are items, note, where'),
    (Order, '{"items": [], "where": [1]}', "$.where: expected a list of 2, got [1]"),
    (Order, '{"items": [], "note": 3}', "$.note: expected an object (Note) or null, got 3"),
    (Order, '{"items": [], "note": {"text": 3}}', "$.note.text: expected a string, got 3"),
    (Order, "[]", "$: expected an object (Order), got []"),
    (Positive, '{"value": 0}', "$: Positive refuses it: it must be above 0"),
    (Colour, '"green"', '$: expected one of "red", "blue", got "green"'),
    (Literal[1], "true", "$: expected one of 1, got true"),
    (int, "true", "$: expected an integer, got true"),
    (int, "1.5", "$: expected an integer, got 1.5"),
    (float, "1" + "0" * 400, "$: the number is too large"),
    (list[int], "[NaN]", "$: not JSON: NaN is no JSON number"),
    (list[float], "[-1e999]", '$: not JSON: "-1e999" is larger than any number here'),
    (list[int], "[1,]", "$: not JSON"),
    (int, "nope", "$: not JSON"),
    (dict[str, int], '{"a": "' + "x" * 100 + '"}', '$.a: expected an integer, got "xxx'),
    (list, "[" * 100 + "]" * 100, "$: lists and objects are nested more than 64 levels deep"),
]


@pytest.mark.parametrize(("kind", "text", "told"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_a_wrong_value_names_its_place(kind: Any, text: str, told: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        from_json(text, kind)
    assert str(caught.value).startswith(told)
    assert len(str(caught.value)) < 200
    assert caught.value.text == text
    assert not isinstance(caught.value, Truncated)


@pytest.mark.parametrize("text", ["", " ", '{"items": [', '"abc', '"abc\\', "[[1]", '{"a": "}'])
def test_a_text_that_ends_within_its_value_is_truncated(text: str) -> None:
    with pytest.raises(Truncated, match="ends within a value"):
        from_json(text, Order)


REFUSED: list[tuple[Any, str]] = [
    (bytes, "bytes cannot"),
    (complex, "complex cannot"),
    (Callable[[int], int], "Callable"),
    (dict[int, str], "dict[int, str] cannot be read from JSON: keys of JSON objects are str"),
    (Unknown, "Unknown cannot be read from JSON: its annotations cannot be read: name 'Nowhere' is not defined"),
    (list[list[bytes]], "bytes ([][]) cannot"),
    ("int", "int cannot"),
    (7, "7 cannot"),
]


@pytest.mark.parametrize(("kind", "told"), REFUSED, ids=[str(kind) for kind, _ in REFUSED])
def test_what_json_cannot_say_is_refused_by_name(kind: Any, told: str) -> None:
    with pytest.raises(UnsupportedType) as caught:
        json_schema(kind)
    assert told in str(caught.value)


def test_types_may_contain_themselves() -> None:
    node = {
        "type": "object",
        "properties": {
            "value": {"type": "integer"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
            "beside": {
                "anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}],
                "description": "or none",
                "default": None,
            },
        },
        "required": ["value"],
        "additionalProperties": False,
    }
    assert json_schema(list[Tree]) == {"type": "array", "items": node, "$defs": {"Tree": node}}
    text = '{"value": 1, "children": [{"value": 2, "beside": {"value": %s}}]}'
    assert from_json(text % 3, Tree) == Tree(1, [Tree(2, [], Tree(3))])
    with pytest.raises(SchemaMismatch, match=r"\$\.children\[0\]\.beside\.value: expected an integer, got true"):
        from_json(text % "true", Tree)
    other = make_dataclass("Tree", [("tree", Tree), ("more", Any, None)])
    other.__annotations__["more"] = other | None
    assert list(json_schema(other)["$defs"]) == ["Tree", "Tree2"]


def test_types_are_not_nested_without_end() -> None:
    kind: Any = int
    for _ in range(40):
        kind = list[kind]
    with pytest.raises(UnsupportedType, match="more than 32 levels"):
        json_schema(kind)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(values, st.text(alphabet=' \n,]}"{a', max_size=5), st.lists(st.integers(1, 6)))
def test_a_scanner_finds_the_end_however_the_text_comes(value: Any, rest: str, sizes: list[int]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    text += " " if isinstance(value, int | float | type(None)) and rest.startswith("a") else ""
    end = len(text.rstrip()) if not isinstance(value, str) else len(text)
    scanner, at, found = JsonScanner(), 0, None
    pieces = [*sizes, len(text + rest)]
    for size in pieces:
        piece = (text + rest)[at : at + size]
        place = scanner.feed(piece)
        if place is not None:
            found = at + place
            break
        at += len(piece)
    scalar = isinstance(value, int | float | type(None))
    assert found == (None if scalar and text + rest == text.rstrip() else end)
