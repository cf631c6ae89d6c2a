"""What parsers of all formats share.

A parser takes the text of an answer in pieces and gives events. It decides by what the text is, never by where a piece
ends: what could still become a marker is held back, so any split of a text gives the same events.

A parser is a machine: `_state` is the method that looks at the start of the buffer. It consumes something and may
change the state, or answers False: it needs more text.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from inferlet_sdk.schemas import JsonScanner, SchemaMismatch, parse_json
from inferlet_sdk.texts import mended
from inferlet_sdk.tools.events import Call, CallStarted, Event, Malformed, Text

LONGEST_CALL = 1 << 17
"""Characters of a call; a longer one is malformed."""
LONGEST_NAME = 256

CUT_OFF = "the text ends within the call"
State = Callable[[], bool]

_NAME_FIRST = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")')


class Parser(ABC):
    """Gives the events of a text that comes in pieces: `feed` each, then `finish`."""

    def __init__(self) -> None:
        self._buffer = ""
        self._events: list[Event] = []
        self._calls = 0
        self._started = ""  # name of the call that has begun
        self._scanner: JsonScanner | None = None
        self._scanned = 0
        self._state: State = self._begin

    def feed(self, text: str) -> list[Event]:
        """What has become certain with these characters."""
        self._buffer += text
        while self._buffer and self._state():
            pass
        events, self._events = self._events, []
        return events

    def finish(self) -> list[Event]:
        """What is left when the text is over."""
        while self._buffer and self._state():
            pass
        self._end()
        events, self._events = self._events, []
        return events

    @abstractmethod
    def _begin(self) -> bool:
        """The first state."""

    @abstractmethod
    def _end(self) -> None:
        """The text is over."""

    def _go(self, state: State) -> bool:
        self._state = state
        return True

    # ---- text ----

    def _text_until(self, marker: str) -> bool:
        """Gives text up to a marker, and takes the marker away. False: there is none yet."""
        text, found, rest = self._buffer.partition(marker)
        if found:
            self._buffer = rest
            self._say(text)
            return True
        keep = held_back(self._buffer, marker)
        self._say(self._buffer[: len(self._buffer) - keep])
        self._buffer = self._buffer[len(self._buffer) - keep :]
        return False

    def _say(self, text: str) -> None:
        if text:
            self._events.append(Text(text))

    def _skip_space(self) -> None:
        self._buffer = self._buffer.lstrip()

    # ---- calls ----

    def _value(self, prefix: int = 0) -> str | None:
        """The JSON value at the start of the buffer, behind `prefix` characters, once it is whole. It stays there."""
        if self._scanner is None:
            self._scanner, self._scanned = JsonScanner(), prefix
        end = self._scanner.feed(self._buffer[self._scanned : LONGEST_CALL])
        if end is None:
            self._scanned = min(len(self._buffer), LONGEST_CALL)
            return None
        text = self._buffer[prefix : self._scanned + end]
        self._scanner = None
        return text

    def _start_by_name(self) -> None:
        """Says that a call has begun, when the buffer begins with an object whose first key is its name."""
        if self._started:
            return
        found = _NAME_FIRST.match(self._buffer)
        name = _name_of(found[1]) if found is not None else ""
        if name:
            self._start(name)

    def _start(self, name: str) -> None:
        if self._started != name:
            self._started = name
            self._events.append(CallStarted(self._calls, name))

    def _call(self, name: str, arguments: dict[str, Any] | list[Any], text: str) -> None:
        if "\\ud" in text.lower():  # half of a surrogate pair may be written so
            name, arguments = json.loads(mended(json.dumps([name, arguments], ensure_ascii=False)))
        self._start(name)
        self._events.append(Call(self._calls, name, arguments, text))
        self._next_call()

    def _call_of(self, text: str, written: str) -> None:
        """The call that a JSON object {"name", "arguments"} describes."""
        try:
            name, arguments = read_call(text)
        except ValueError as error:
            self._malformed(written, str(error))
        else:
            self._call(name, arguments, written)

    def _call_with(self, name: str, text: str, written: str) -> None:
        """The call of this name whose arguments are a JSON object."""
        try:
            arguments = read_arguments(parse_json(text))
        except SchemaMismatch as error:
            self._malformed(written, error.reason)
        else:
            self._call(name, arguments, written)

    def _malformed(self, text: str, reason: str, cut_off: bool = False) -> None:
        self._events.append(Malformed(self._calls, text, reason, self._started, cut_off))
        self._next_call()

    def _next_call(self) -> None:
        self._calls += 1
        self._started = ""
        self._scanner = None

    def _up_to(self, marker: str) -> str | None:
        """What stands in front of a marker, if that is there."""
        end = self._buffer.find(marker, 0, LONGEST_CALL)
        return None if end < 0 else self._buffer[:end]

    def _give_up_too_long(self) -> bool:
        """Gives up a call that has no end."""
        if len(self._buffer) < LONGEST_CALL:
            return False
        text, self._buffer = self._buffer[:LONGEST_CALL], self._buffer[LONGEST_CALL:]
        self._malformed(text, f"the call is longer than {LONGEST_CALL} characters")
        return self._go(self._begin)


def held_back(text: str, marker: str) -> int:
    """How many characters at the end of a text may be the beginning of a marker."""
    for count in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:count]):
            return count
    return 0


def _name_of(text: str) -> str:
    try:
        return mended(str(json.loads(text)))
    except ValueError:
        return ""


def read_call(text: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a JSON object {"name", "arguments" or "parameters"}; raises ValueError."""
    try:
        value = parse_json(text)
    except SchemaMismatch as error:
        raise ValueError(error.reason) from None
    if not isinstance(value, dict):
        raise ValueError('a call is an object {"name": ..., "arguments": {...}}')
    name = value.get("name")
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME:
        raise ValueError('the call has no "name"')
    return name, read_arguments(value.get("arguments", value.get("parameters")))


def read_arguments(value: object) -> dict[str, Any]:
    """Arguments by name: an object, its text (as some models write it), or nothing; raises ValueError."""
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else None
        except SchemaMismatch as error:
            raise ValueError(f'"arguments": {error.reason}') from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError('"arguments" is no object')
    return value
