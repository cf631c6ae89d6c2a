"""The demo model: `<tool>name(1, "two")</tool>`, JSON values in the order of the tool's parameters."""

from __future__ import annotations

import re
from typing import Any

from inferlet_sdk.schemas import SchemaMismatch, parse_json
from inferlet_sdk.tools.formats.marked import MarkedParser
from inferlet_sdk.tools.formats.parser import LONGEST_NAME

BEGIN, END = "<tool>", "</tool>"
_NAME = re.compile(r"[^\W\d][\w-]*")


class SignatureParser(MarkedParser):
    """A call is written as functions are called."""

    begin, end, expected = BEGIN, END, "name(arguments)"

    def _inside(self) -> bool:
        name, found, _ = self._buffer.partition("(")
        if len(name) > LONGEST_NAME or "<" in name or (found and not _NAME.fullmatch(name.strip())):
            return self._go(self._something_else)
        if not found:
            return False
        self._start(name.strip())
        return self._go(self._arguments)

    def _arguments(self) -> bool:
        place = self._buffer.index("(")
        text = self._value(place)
        if text is None:
            return self._give_up_too_long()
        written = self._buffer[: place + len(text)]
        self._buffer = self._buffer[len(written) :]
        shown = f"{BEGIN}{written}{END}"
        try:
            values: list[Any] = parse_json(f"[{text[1:-1]}]")
        except SchemaMismatch as error:
            self._malformed(shown, error.reason)
        else:
            self._call(self._started, values, shown)
        return self._go(self._after)
