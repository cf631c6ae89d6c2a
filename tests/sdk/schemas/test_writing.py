"""`to_json` is the inverse of `from_json`."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Any, NamedTuple

import pytest

from inferlet_sdk import SchemaMismatch, from_json, json_schema, to_json


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Place(NamedTuple):
    x: int
    y: int = 0


@dataclass(frozen=True)
class Item:
    name: str
    colours: frozenset[Colour] = frozenset()
    where: Place | None = None
    bought: datetime | None = None
    parts: dict[str, tuple[date, time]] = field(default_factory=dict)
    length: int = field(default=0, init=False)


FULL = Item(
    "pen",
    frozenset({Colour.RED, Colour.BLUE}),
    Place(1, 2),
    datetime(2026, 1, 2, 3, 4, 5, 600, UTC),
    {"ink": (date(2026, 1, 2), time(3, 4))},
)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (FULL, Item),
        ([Item("a"), FULL], list[Item]),
        ({1, 2}, set[int]),
        (frozenset({"b", "a"}), frozenset[str]),
        (Colour.RED, Colour),
        (Level.LOW, Level),
        (Place(3), Place),
        ({"a": [Colour.BLUE]}, dict[str, list[Colour]]),
        (date(2026, 1, 2), date),
        ("text", str),
        (None, None),
    ],
)
def test_what_is_written_is_read_as_it_was(value: Any, kind: Any) -> None:
    assert from_json(to_json(value), kind) == value


def test_what_is_written() -> None:
    assert json.loads(to_json(FULL)) == {
        "name": "pen",
        "colours": ["blue", "red"],
        "where": {"x": 1, "y": 2},
        "bought": "2026-01-02T03:04:05.000600+00:00",
        "parts": {"ink": ["2026-01-02", "03:04:00"]},
    }
    assert to_json({Colour.RED: {2, 10}}) == '{"red": [2, 10]}'
    assert to_json({"a", 1}) == '["a", 1]'


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("make", "kind", "why"),
    [
        (lambda: {"a": b"x"}, TypeError, "bytes is not JSON serializable"),
        (circle, ValueError, "it contains itself"),
        (lambda: [1.5, {"p": float("-inf")}], ValueError, r"\$\[1\]\['p'\] is -inf, which is no number of JSON"),
        (lambda: Item, TypeError, "type is not JSON serializable"),
    ],
)
def test_what_has_no_json_is_told(make: Callable[[], Any], kind: type[Exception], why: str) -> None:
    with pytest.raises(kind, match=why):
        to_json(make())


def test_moments_and_sets_have_schemas_and_are_checked() -> None:
    assert json_schema(datetime) == {"type": "string", "format": "date-time"}
    assert json_schema(set[int]) == {"type": "array", "items": {"type": "integer"}}
    assert from_json('"2026-01-02t03:04:60z"', datetime) == datetime(2026, 1, 2, 3, 4, 59, 0, UTC)
    assert from_json('"03:59:60.5+01:00"', time).isoformat() == "03:59:59.500000+01:00"
    with pytest.raises(SchemaMismatch, match='expected a date in ISO 8601, got "soon"'):
        from_json('"soon"', date)
    with pytest.raises(SchemaMismatch, match="expected a time in ISO 8601, got 7"):
        from_json("7", time)
    with pytest.raises(SchemaMismatch, match=r"no set can be made of these: .*unhashable"):
        from_json("[[1]]", set[list[int]])
