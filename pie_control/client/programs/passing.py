"""What a caller passes to a program: `launch(program, "bees", 3, loud=True)`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pie_control.errors import BadRequest

JSON_VALUES = "text, a number, True, False, None, or lists and dicts of these"
LONGEST_TOLD = 60


def wrong(name: str, wanted: str, value: object) -> BadRequest:
    """The error for an argument of a wrong type."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with too many digits, lists in lists in lists
        return BadRequest(f"{name}: give {wanted}, not such a {type(value).__name__}, which cannot be written")
    text = text if len(text) <= LONGEST_TOLD else f"{text[: LONGEST_TOLD - 3]}..."
    return BadRequest(f"{name}: give {wanted}, not {type(value).__name__} {text}")


def passed(
    args: Sequence[Any], kwargs: Mapping[str, Any], environment: Mapping[str, str] | None
) -> tuple[list[str], dict[str, str]]:
    """The words and the environment by which an inferlet gets its arguments. A text is a word of its command line; any
    other value goes to the environment, and its place among the words has its JSON. Raises BadRequest."""
    if environment is not None and not isinstance(environment, Mapping):
        raise wrong("environment", "a mapping of names to texts", environment)
    env = dict(environment or {})
    for name, text in env.items():
        _check_text(name, "environment")
        _check_text(text, f"environment[{name!r}]")
    values = {place: value for place, value in enumerate(args) if not isinstance(value, str)}
    words = [_as_json(one, f"args[{place}]") if place in values else one for place, one in enumerate(args)]
    for place, word in enumerate(words):
        _check_text(word, f"args[{place}]")
    for name, value in kwargs.items():
        _as_json(value, name)
    if values:
        env["args"] = json.dumps(values)
    if kwargs:
        env["kwargs"] = json.dumps(dict(kwargs))
    return words, env


def as_value(value: Any, environment: Mapping[str, str] | None) -> dict[str, str]:
    """The environment in which an only argument is a value, though it may be a text: no word of a command line."""
    return {**(environment or {}), "args": f'{{"0": {_as_json(value, "inputs")}}}'}


def _as_json(value: Any, name: str) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        raise wrong(name, JSON_VALUES, value) from None


def _check_text(value: Any, name: str) -> None:
    if not isinstance(value, str):
        raise wrong(name, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"{name}: character {error.start} is half of a surrogate pair, which no text can have"
        ) from None
