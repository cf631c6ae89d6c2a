"""Values as JSON: what `from_json` reads, it writes."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
from typing import Any

from inferlet_sdk.texts import json_text


def to_json(value: Any) -> str:
    """The JSON text of a value, which `from_json` reads with the value's type.

    A dataclass (its fields with `init`) and a NamedTuple are objects, an Enum is its value, a set is a list (sorted if
    it can be), a date, time or datetime is text in ISO 8601. Raises TypeError for what has no JSON, ValueError if a
    value contains itself, or NaN or an infinity.
    """
    return json_text(plain(value))


def plain(value: Any) -> Any:
    """The value as what JSON has. Raises ValueError if it contains itself."""
    try:
        return _plain(value)
    except RecursionError:
        raise ValueError("it contains itself, or is nested too deep") from None


def one_level(value: Any) -> Any:
    """The value as what JSON has, but for what stands in it."""
    if isinstance(value, enum.Enum):
        return one_level(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, tuple) and hasattr(value, "_field_defaults"):
        return dict(zip(value._fields, value, strict=True))  # type: ignore[attr-defined]  # a NamedTuple
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value


def _plain(value: Any) -> Any:
    shallow = one_level(value)
    if isinstance(shallow, dict):
        return {one_level(key) if isinstance(key, enum.Enum) else key: _plain(one) for key, one in shallow.items()}
    if not isinstance(shallow, list | tuple):
        return shallow
    items = [_plain(one) for one in shallow]
    return _in_order(items) if isinstance(value, set | frozenset) else items


def _in_order(items: list[Any]) -> list[Any]:
    """Sorts what can be sorted, so that the same set gives the same text."""
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=json.dumps)
