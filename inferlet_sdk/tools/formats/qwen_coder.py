"""Qwen3-Coder, and Qwen 3.5 and later:

<tool_call>
<function=name>
<parameter=first>
a text as it is, or JSON
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import re
from typing import Any

from inferlet_sdk.tools.events import Written
from inferlet_sdk.tools.formats.marked import MarkedParser
from inferlet_sdk.tools.formats.parser import LONGEST_CALL, LONGEST_NAME

BEGIN, END = "<tool_call>", "</tool_call>"
_FUNCTION, _PARAMETER, VALUE_END, _FUNCTION_END = "<function=", "<parameter=", "</parameter>", "</function>"
_SPACE = re.compile(r"\s*")


class QwenCoderParser(MarkedParser):
    """Values are texts whose type only the tool knows: `Written`. One ends at the first end tag."""

    begin, end, expected = BEGIN, END, f"{_FUNCTION}name>, parameters and {_FUNCTION_END}"

    def __init__(self) -> None:
        super().__init__()
        self._at = 0  # what is before was read: the call stays in the buffer until it is whole
        self._arguments: dict[str, Any] = {}

    def _inside(self) -> bool:
        self._skip_space()
        if _may_become(self._buffer, 0, _FUNCTION):
            return False
        name = self._tag(0, _FUNCTION)
        if name is None:
            return False
        if not name:
            return self._go(self._something_else)
        self._start(name)
        self._at, self._arguments = len(_FUNCTION) + len(name) + 1, {}
        return self._go(self._parameters)

    def _parameters(self) -> bool:
        at = _SPACE.match(self._buffer, self._at).end()  # type: ignore[union-attr]  # it always matches
        unknown = _may_become(self._buffer, at, _PARAMETER) or _may_become(self._buffer, at, _FUNCTION_END)
        if unknown or at + len(_FUNCTION_END) > LONGEST_CALL:
            return self._give_up_too_long()
        if self._buffer.startswith(_FUNCTION_END, at):
            return self._whole(at + len(_FUNCTION_END))
        name = self._tag(at, _PARAMETER)
        if name is None:
            return self._give_up_too_long()
        if not name:
            return self._go(self._something_else)
        start = at + len(_PARAMETER) + len(name) + 1
        end = self._buffer.find(VALUE_END, start, LONGEST_CALL)
        if end < 0:
            return self._give_up_too_long()
        value = self._buffer[start:end].removeprefix("\n").removesuffix("\n")
        self._arguments[name] = Written(value)
        self._at = end + len(VALUE_END)
        return True

    def _tag(self, at: int, tag: str) -> str | None:
        """The name in a tag like `<function=name>`; "": it is none, None: it goes on."""
        if not self._buffer.startswith(tag, at):
            return ""
        name, found, _ = self._buffer[at + len(tag) : at + len(tag) + LONGEST_NAME + 1].partition(">")
        if found:
            return name if name and not re.search(r"[\s<]", name) else ""
        return None if len(name) <= LONGEST_NAME else ""

    def _whole(self, end: int) -> bool:
        written, self._buffer = self._buffer[:end], self._buffer[end:]
        self._call(self._started, self._arguments, f"{BEGIN}\n{written}\n{END}")
        return self._go(self._after)


def _may_become(text: str, at: int, tag: str) -> bool:
    """Whether a text ends in the midst of a tag, or where one may begin."""
    return len(text) - at < len(tag) and tag.startswith(text[at:])
