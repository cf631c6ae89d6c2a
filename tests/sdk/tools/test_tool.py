"""Declarations of typed functions, and their arguments."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pytest

from inferlet_sdk import SchemaMismatch, Tool, UnsupportedType, tool
from inferlet_sdk.tools.docstring import read_docstring
from inferlet_sdk.tools.events import Written
from inferlet_sdk.tools.tool import as_text


class Color(Enum):
    RED = "red"


@dataclass
class Place:
    x: int
    y: int = 0


@tool
def weather(
    city: str, unit: Literal["C", "F"] = "C", at: Place | None = None, *, days: Annotated[int, "1 to 9"] = 1
) -> str:
    """Tells the weather
    in a city.

    It may be wrong.

    Args:
        city: its name,
            in English
        unit (str): of the temperature
        days: not shown, because the annotation says it
    Returns:
        A sentence.
    """
    return f"{city} {unit} {at} {days}"


def test_a_declaration_has_what_the_signature_and_the_docstring_say() -> None:
    function = weather.declaration["function"]
    json.dumps(weather.declaration)
    assert (function["name"], function["description"]) == (
        "weather",
        "Tells the weather in a city.\n\nIt may be wrong.",
    )
    parameters = function["parameters"]
    assert parameters["required"] == ["city"]
    assert parameters["properties"]["city"] == {"type": "string", "description": "its name, in English"}
    assert parameters["properties"]["unit"] == {
        "type": "string",
        "enum": ["C", "F"],
        "description": "of the temperature",
        "default": "C",
    }
    assert parameters["properties"]["days"] == {"type": "integer", "description": "1 to 9", "default": 1}
    assert weather.signature == "weather(city, unit, at, days)"


@dataclass
class Branch:
    twigs: list[Branch]


@tool
def grow(branch: Branch) -> None:
    """Grows."""


def test_a_tool_is_called_as_its_function() -> None:
    assert weather("Oslo", days=2) == "Oslo C None 2"


def test_arguments_become_what_the_annotations_say() -> None:
    assert weather.bind({"city": "Oslo", "at": {"x": 1}}) == {"city": "Oslo", "at": Place(1)}
    assert weather.bind(["Oslo", "F"]) == {"city": "Oslo", "unit": "F"}
    assert list(grow.declaration["function"]["parameters"]["$defs"]) == ["Branch"]
    assert grow.bind({"branch": {"twigs": [{"twigs": []}]}}) == {"branch": Branch([Branch([])])}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, '$: "city" is missing: expected a string'),
        ({"city": "Oslo", "town": 1}, "$.town: no such key of weather; there are city, unit, at, days"),
        ({"city": "Oslo", "at": {"x": "1"}}, '$.at.x: expected an integer, got "1"'),
        (["Oslo", "K"], '$.unit: expected one of "C", "F", got "K"'),
        (["Oslo", "C", None, 1, 2], "$: weather(city, unit, at, days) takes 4 arguments, not 5"),
    ],
)
def test_wrong_arguments_name_their_place(arguments: Any, told: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        weather.bind(arguments)
    assert str(caught.value) == told


def no_annotation(a) -> None:  # type: ignore[no-untyped-def]
    pass


def method(self, a: int) -> None:  # type: ignore[no-untyped-def]
    pass


def any_number(*a: int) -> None:
    pass


def by_place(a: int, /) -> None:
    pass


def with_bytes(a: list[bytes]) -> None:
    pass


def unknown(a: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (no_annotation, "no_annotation: parameter 'a' has no annotation"),
        (method, "method: a method is a tool with its object alone: `Tools(thing.method)`"),
        (any_number, "any_number: a tool cannot have a parameter like `*a: 'int'`"),
        (by_place, "by_place: a tool cannot have a parameter"),
        (with_bytes, "bytes (with_bytes.a[]) cannot be read from JSON"),
        (unknown, "unknown: its annotations cannot be read: name 'Nowhere' is not defined"),
    ],
)
def test_functions_that_cannot_be_tools_are_refused_by_name(function: Callable[..., Any], told: str) -> None:
    with pytest.raises(UnsupportedType) as caught:
        Tool(function)
    assert told in str(caught.value)


def test_names_are_those_that_models_take() -> None:
    with pytest.raises(ValueError, match="'<lambda>' cannot be a tool's"):
        Tool(lambda: 1)
    assert Tool(lambda: 1, name="one", description="Gives one.").declaration["function"]["description"] == "Gives one."


def test_methods_are_tools() -> None:
    class Shop:
        def price(self, item: str) -> float:
            """Tells a price."""
            return len(item) / 2

    assert Tool(Shop().price).declaration["function"]["parameters"]["required"] == ["item"]


def test_docstrings_without_sections() -> None:
    assert read_docstring("") == ("", {})
    assert read_docstring("One.\nTwo.") == ("One. Two.", {})
    assert read_docstring("Args:\n    a: b: c\nAfter.") == ("After.", {"a": "b: c"})


def test_results_as_text() -> None:
    assert [as_text(one) for one in ("é", None, 3, ["é"], Place(1), {1}, [Color.RED, datetime(2026, 1, 2, 3)])] == [
        "é",
        "null",
        "3",
        '["é"]',
        '{"x": 1, "y": 0}',
        "[1]",
        '["red", "2026-01-02T03:00:00"]',
    ]


def test_what_says_nothing_as_a_text_is_no_result() -> None:
    async def later() -> AsyncIterator[int]:
        yield 1

    for value, kind in ((iter("a"), "str_ascii_iterator"), ((n for n in "a"), "generator"), (b"a", "bytes")):
        with pytest.raises(TypeError, match=f"a tool gave {kind}, which a model cannot read"):
            as_text(value)
    with pytest.raises(TypeError, match="a tool gave async_generator"):
        as_text({"found": later()})


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (str, "12", "12"),
        (str, "a\n<b>", "a\n<b>"),
        (str, "null", "null"),
        (int, "12", 12),
        (int, " 12\n", 12),
        (float, "1e3", 1000.0),
        (bool, "True", True),
        (bool, "false", False),
        (int | None, "None", None),
        (str | None, "null", None),
        (str | None, "none", "none"),
        (str | int, "12", "12"),
        (list[int], "[1, 2]", [1, 2]),
        (list[str], '["a"]', ["a"]),
        (Place, '{"x": 1}', Place(1)),
        (Literal["C", "F"], "C", "C"),
        (Literal[1, 2], "2", 2),
        (Annotated[int, "a number"], "3", 3),
        (dict[str, Any], "{}", {}),
    ],
)
def test_what_was_written_gets_the_type_of_its_parameter(kind: Any, written: str, value: object) -> None:
    def take(it: object) -> None:
        """Takes it."""

    take.__annotations__["it"] = kind
    assert tool(take).bind({"it": Written(written)}) == {"it": value}


def test_what_was_written_and_fits_no_type_is_told() -> None:
    with pytest.raises(SchemaMismatch, match=r'days: expected an integer, got "many"'):
        weather.bind({"city": Written("Rome"), "days": Written("many")})
    with pytest.raises(SchemaMismatch, match="no such key"):
        weather.bind({"city": Written("Rome"), "night": Written("1")})
