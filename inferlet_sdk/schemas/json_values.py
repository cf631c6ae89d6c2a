"""JSON text: where a value ends while it still comes, and its value."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from inferlet_sdk.schemas.mismatch import SchemaMismatch, Truncated, told

DEEPEST = 64
"""Levels of lists and objects in a value of a model."""

_SPACE = re.compile(r"[ \t\r\n]*")
_STRUCTURE = re.compile(r'["{}\[\]()]')
_IN_STRING = re.compile(r'["\\]')
_SCALAR = re.compile(r"[-+.\w]*")


class JsonScanner:
    """Finds where a JSON value ends in a text that comes in pieces. It looks at brackets and strings only: whether all
    between them is JSON, `parse_json` says. JSON values in parentheses count as one.

        scanner = JsonScanner()
        scanner.feed('{"a": [1')  # None
        scanner.feed("]} and more")  # 2: the value ends after two characters of this piece
    """

    def __init__(self) -> None:
        self.done = False
        self.depth = 0
        self._started = False
        self._in_string = False
        self._escaped = False
        self._scalar = False

    def feed(self, text: str) -> int | None:
        """Where the value ends in `text`: the number of its characters that belong to it, None if it goes on. A number
        or a word ends at a character that cannot be part of it."""
        at = 0
        while at < len(text) and not self.done:
            at = self._step(text, at)
        return at if self.done else None

    def _step(self, text: str, at: int) -> int:
        if self._in_string:
            return self._string(text, at)
        if self._scalar:
            return self._in_scalar(text, at)
        if not self._started:
            return self._start(text, at)
        found = _STRUCTURE.search(text, at)
        return len(text) if found is None else self._bracket(found[0], found.start())

    def _start(self, text: str, at: int) -> int:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it always matches
        if at == len(text):
            return at
        self._started = True
        if text[at] in '"{[(':
            return self._bracket(text[at], at)
        self._scalar = True
        return at

    def _bracket(self, letter: str, at: int) -> int:
        if letter == '"':
            self._in_string = True
        elif letter in "{[(":
            self.depth += 1
        else:
            self.depth -= 1
            self.done = self.depth <= 0
        return at + 1

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.search(text, at)
        if found is None:
            return len(text)
        if found[0] == "\\":
            self._escaped = True
        else:
            self._in_string, self.done = False, self.depth == 0
        return found.end()

    def _in_scalar(self, text: str, at: int) -> int:
        end = _SCALAR.match(text, at).end()  # type: ignore[union-attr]  # it always matches
        self.done = end < len(text)
        return end


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises SchemaMismatch, or Truncated if the text ends within the value."""
    scanner = JsonScanner()
    if _too_deep(text):
        raise SchemaMismatch(f"lists and objects are nested more than {DEEPEST} levels deep", text=text)
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        scanner.feed(text)
        if not scanner.done and not (text.strip() and scanner.depth == 0 and text.strip()[0] not in '"{['):
            raise Truncated(f"the JSON text ends within a value: {told(text)}", text=text) from None
        raise SchemaMismatch(f"not JSON: {error}: {told(text)}", text=text) from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{told(text)} is larger than any number here")
    return number


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= DEEPEST:
        return False
    depth = deepest = 0
    for found in re.finditer(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', text, re.DOTALL):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        deepest = max(deepest, depth)
    return deepest > DEEPEST
