"""Llama 3.1 to 3.3: the answer is one JSON object {"name", "parameters"}, or several with `;` between them, often after
`<|python_tag|>`. An answer that is another object is text."""

from __future__ import annotations

import re

from inferlet_sdk.schemas import SchemaMismatch, parse_json
from inferlet_sdk.tools.formats.parser import CUT_OFF, Parser

TAG = "<|python_tag|>"
_KEYS = ("name", "parameters", "arguments", "type")
_FIRST_KEY = re.compile(r'\{\s*"([^"\\]*)"')
_CALL = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"[^"\\]+"\s*,\s*"(?:parameters|arguments)"\s*:'
)
_GAP = re.compile(r"[\s;]*")


class LlamaParser(Parser):
    """Objects at the start of an answer, after a tag, and after each other."""

    _tagged = False

    def _begin(self) -> bool:
        """At the start of the answer: an object, a tag, or text."""
        rest = self._buffer.lstrip()
        if not rest or (TAG.startswith(rest) and rest != TAG):
            return False
        if rest[0] == "{":
            return self._go(self._object)
        return self._go(self._words)

    def _words(self) -> bool:
        """Text, up to a tag."""
        if not self._text_until(TAG):
            return False
        self._tagged = True
        return self._go(self._behind_tag)

    def _behind_tag(self) -> bool:
        self._skip_space()
        if not self._buffer:
            return False
        return self._go(self._object if self._buffer[0] == "{" else self._something_else)

    def _object(self) -> bool:
        space = len(self._buffer) - len(self._buffer.lstrip())
        if not self._tagged and self._is_another_object(space):
            return self._go(self._words)
        if self._tagged or _CALL.match(self._buffer, space):
            self._start_by_name()
        text = self._value(space)
        if text is None:
            return self._give_up_too_long()
        written = self._buffer[: space + len(text)]
        self._buffer = self._buffer[len(written) :]
        if self._tagged or _is_call(text):
            self._call_of(text, text)
            return self._go(self._after)
        self._next_call_is_the_same()
        self._say(written)
        return self._go(self._words)

    def _is_another_object(self, space: int) -> bool:
        """Whether its first key is none of a call: then it need not be held back."""
        found = _FIRST_KEY.match(self._buffer, space)
        if found is None or found[1] in _KEYS:
            return False
        self._next_call_is_the_same()
        return True

    def _next_call_is_the_same(self) -> None:
        self._scanner, self._started = None, ""

    def _after(self) -> bool:
        """Behind a call: another one, perhaps with a tag, or text."""
        rest = self._buffer[_GAP.match(self._buffer).end() :]  # type: ignore[union-attr]  # it always matches
        if not rest or (TAG.startswith(rest) and rest != TAG):
            return False
        if rest[0] == "{":
            self._buffer = rest
            return self._go(self._object)
        if rest.startswith(TAG):
            self._buffer = rest
        return self._go(self._words)

    def _something_else(self) -> bool:
        """After a tag: a program, or a call of another form, up to the end."""
        return self._give_up_too_long()

    def _end(self) -> None:
        if self._state == self._something_else:
            self._malformed(TAG + self._buffer, 'no JSON object {"name", "parameters"} follows ' + TAG)
        elif self._state == self._behind_tag:
            self._malformed(TAG, CUT_OFF, cut_off=True)
        elif self._state == self._object and (self._started or self._tagged):
            self._malformed(self._buffer, CUT_OFF, cut_off=True)
        elif self._state == self._after:
            self._say(self._buffer if self._buffer.strip("; \t\r\n") else "")
        else:
            self._say(self._buffer)
        self._buffer = ""


def _is_call(text: str) -> bool:
    """Whether an object without a tag is a call: it has a name and parameters, and nothing else."""
    if _CALL.match(text):
        return True
    try:
        value = parse_json(text)
    except SchemaMismatch:
        return False
    return set(value) <= set(_KEYS) and "name" in value and bool({"parameters", "arguments"} & set(value))
