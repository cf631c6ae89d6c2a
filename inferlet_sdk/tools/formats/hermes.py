"""Hermes, Qwen 2.5 and 3, and many others: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once for each
call, with text around it."""

from __future__ import annotations

from inferlet_sdk.tools.formats.parser import CUT_OFF, Parser

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesParser(Parser):
    """Calls between markers. A call is complete with the end of its object; a model may leave out the marker after
    it."""

    def _begin(self) -> bool:
        return self._text_until(BEGIN) and self._go(self._object)

    def _object(self) -> bool:
        self._skip_space()
        if not self._buffer:
            return False
        if self._buffer[0] != "{":
            return self._go(self._something_else)
        self._start_by_name()
        text = self._value()
        if text is None:
            return self._give_up_too_long()
        self._buffer = self._buffer[len(text) :]
        self._call_of(text, f"{BEGIN}{text}{END}")
        return self._go(self._after)

    def _something_else(self) -> bool:
        """No object: malformed up to the end marker."""
        text = self._up_to(END)
        if text is None:
            return self._give_up_too_long()
        self._buffer = self._buffer[len(text) + len(END) :]
        self._malformed(f"{BEGIN}{text}{END}", "no JSON object {" + '"name", "arguments"} follows ' + BEGIN)
        return self._go(self._begin)

    def _after(self) -> bool:
        """Behind an object: the end marker is taken away if it is there."""
        rest = self._buffer.lstrip()
        if rest.startswith(END):
            self._buffer = rest[len(END) :]
        elif not rest or END.startswith(rest):
            return False
        return self._go(self._begin)

    def _end(self) -> None:
        if self._state in (self._object, self._something_else):
            self._malformed(BEGIN + self._buffer, CUT_OFF, cut_off=True)
        else:
            self._say(self._buffer)
        self._buffer = ""
