"""Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, and from tokenizer version 11 on
`[TOOL_CALLS]name[ARGS]{...}` for each call, with `[CALL_ID]id` in between in some."""

from __future__ import annotations

import re

from inferlet_sdk.tools.formats.parser import CUT_OFF, LONGEST_NAME, Parser

BEGIN, ARGUMENTS, IDENTIFIER = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NEITHER = f"neither a list of calls nor name{ARGUMENTS}{{...}} follows {BEGIN}"
_NAME = re.compile(r"\s*([^\[{]*)")
_IDENTIFIER = re.compile(r"\s*\[CALL_ID\]\s*([^\[{]*)")


class MistralParser(Parser):
    """Calls behind a marker: a list of objects, or a name and its arguments."""

    def _begin(self) -> bool:
        return self._text_until(BEGIN) and self._go(self._marked)

    def _marked(self) -> bool:
        self._skip_space()
        if not self._buffer:
            return False
        if self._buffer[0] == "[":
            self._buffer = self._buffer[1:]
            return self._go(self._element)
        return self._go(self._named)

    # ---- [{...}, {...}] ----

    def _element(self) -> bool:
        self._buffer = self._buffer.lstrip(" \t\r\n,")
        if not self._buffer:
            return False
        if self._buffer[0] == "]":
            self._buffer = self._buffer[1:]
            return self._go(self._begin)
        if self._buffer[0] != "{":
            return self._go(self._something_else)
        self._start_by_name()
        text = self._value()
        if text is None:
            return self._give_up_too_long()
        self._buffer = self._buffer[len(text) :]
        self._call_of(text, text)
        return True

    # ---- name[ARGS]{...} ----

    def _named(self) -> bool:
        found = _NAME.match(self._buffer)
        assert found is not None  # it matches nothing, too
        name = found[1].strip()
        if found.end() > LONGEST_NAME:
            return self._go(self._something_else)
        if found.end() == len(self._buffer):
            return False
        start = self._start_of_arguments(found.end()) if name else -1
        if start is None:
            return self._give_up_too_long()
        if start < 0:
            return self._go(self._something_else)
        self._start(name)
        text = self._value(start)
        if text is None:
            return self._give_up_too_long()
        written = self._buffer[: start + len(text)]
        self._buffer = self._buffer[len(written) :]
        self._call_with(name, text, BEGIN + written)
        return self._go(self._begin)

    def _start_of_arguments(self, at: int) -> int | None:
        """Where the arguments begin; None: it is not known yet, below 0: there are none."""
        rest = self._buffer[at:]
        if IDENTIFIER.startswith(rest) or ARGUMENTS.startswith(rest):
            return None
        if rest.startswith(IDENTIFIER):
            found = _IDENTIFIER.match(rest)
            assert found is not None
            if found.end() > LONGEST_NAME:
                return -1
            at, rest = at + found.end(), rest[found.end() :]
            if ARGUMENTS.startswith(rest):
                return None
        if rest.startswith(ARGUMENTS):
            at += len(ARGUMENTS)
            rest = rest[len(ARGUMENTS) :]
        at += len(rest) - len(rest.lstrip())
        if not rest.strip():
            return None
        return at if self._buffer[at] == "{" else -1

    # ---- what is none of it ----

    def _something_else(self) -> bool:
        """Malformed up to the next marker."""
        text = self._up_to(BEGIN)
        if text is None:
            return self._give_up_too_long()
        self._buffer = self._buffer[len(text) :]
        self._malformed(BEGIN + text, _NEITHER)
        return self._go(self._begin)

    def _end(self) -> None:
        if self._state == self._begin:
            self._say(self._buffer)
        elif self._state == self._something_else:
            self._malformed(BEGIN + self._buffer, _NEITHER)
        elif self._state != self._element or self._buffer or not self._calls:
            self._malformed(BEGIN + self._buffer, CUT_OFF, cut_off=True)
        self._buffer = ""
