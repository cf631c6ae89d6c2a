"""DeepSeek V3 and R1: calls of the form `function<｜tool▁sep｜>name`, a block of JSON in three backticks; V3.1:
`name<｜tool▁sep｜>{...}`. All calls of an answer stand together."""

from __future__ import annotations

import re

from inferlet_sdk.tools.formats.parser import CUT_OFF, LONGEST_NAME, Parser

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_KIND = "function"
_FENCE = "```"
_BEFORE = re.compile(r"\s*(?:```(?:json)?\s*)?(?=\{)")
_MAYBE_BEFORE = re.compile(r"\s*(?:`{0,2}|```(?:j|js|jso|json)?\s*)")
_NO_CALL = f"no name and arguments follow {CALL}"


class DeepSeekParser(Parser):
    """Calls between markers of their own, within markers of all of them."""

    def _begin(self) -> bool:
        return self._text_until(BEGIN) and self._go(self._between)

    def _between(self) -> bool:
        """Before a call, or behind the last one."""
        self._skip_space()
        for marker, state in ((CALL, self._head), (END, self._begin)):
            if self._buffer.startswith(marker):
                self._buffer = self._buffer[len(marker) :]
                return self._go(state)
            if marker.startswith(self._buffer):
                return False
        return self._go(self._something_else)

    def _head(self) -> bool:
        """The name, in front of the arguments."""
        most = LONGEST_NAME + len(SEPARATOR)
        start = self._buffer.find(SEPARATOR, 0, most)
        if start < 0:
            return len(self._buffer) >= most and self._go(self._something_else)
        name, at = self._buffer[:start].strip(), start + len(SEPARATOR)
        if name == _KIND:
            end = self._buffer.find("\n", at, at + LONGEST_NAME)
            if end < 0:
                return len(self._buffer) - at >= LONGEST_NAME and self._go(self._something_else)
            name, at = self._buffer[at:end].strip(), end
        before = _BEFORE.match(self._buffer, at)
        if before is None and _MAYBE_BEFORE.fullmatch(self._buffer, at):
            return self._give_up_too_long()
        if before is None or not name:
            return self._go(self._something_else)
        self._start(name)
        text = self._value(before.end())
        if text is None:
            return self._give_up_too_long()
        written = self._buffer[: before.end() + len(text)]
        self._buffer = self._buffer[len(written) :]
        self._call_with(name, text, CALL + written)
        return self._go(self._after)

    def _after(self) -> bool:
        """Behind the arguments: what ends the call is taken away if it is there."""
        rest = self._buffer.lstrip().removeprefix(_FENCE).lstrip()
        if rest.startswith(CALL_END):
            self._buffer = rest[len(CALL_END) :]
        elif CALL_END.startswith(rest) or _FENCE.startswith(self._buffer.strip()):
            return False
        return self._go(self._between)

    def _something_else(self) -> bool:
        """Malformed up to the end of all calls."""
        text = self._up_to(END)
        if text is None:
            return self._give_up_too_long()
        self._buffer = self._buffer[len(text) + len(END) :]
        self._malformed(CALL + text, _NO_CALL)
        return self._go(self._begin)

    def _end(self) -> None:
        if self._state == self._begin:
            self._say(self._buffer)
        elif self._state == self._something_else:
            self._malformed(CALL + self._buffer, _NO_CALL)
        elif self._state == self._head or (self._state == self._between and not self._calls):
            self._malformed(CALL + self._buffer, CUT_OFF, cut_off=True)
        self._buffer = ""
