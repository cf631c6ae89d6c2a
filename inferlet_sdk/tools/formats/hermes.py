"""Hermes, Qwen 2.5 and 3, and many others: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once for each
call."""

from __future__ import annotations

from inferlet_sdk.tools.formats.marked import MarkedParser

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesParser(MarkedParser):
    """A call is an object."""

    begin, end, expected = BEGIN, END, 'JSON object {"name", "arguments"}'

    def _inside(self) -> bool:
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
