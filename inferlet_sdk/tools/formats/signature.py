"""The demo model: `<tool>name(1, "two")</tool>`, JSON values in the order of the tool's parameters."""

from __future__ import annotations

from typing import Any

from inferlet_sdk.schemas import SchemaMismatch, parse_json
from inferlet_sdk.tools.formats.parser import CUT_OFF, LONGEST_NAME, Parser

BEGIN, END = "<tool>", "</tool>"


class SignatureParser(Parser):
    """Calls between markers, as functions are called."""

    def _begin(self) -> bool:
        return self._text_until(BEGIN) and self._go(self._name)

    def _name(self) -> bool:
        name, found, _ = self._buffer.partition("(")
        if len(name) > LONGEST_NAME or "<" in name or (found and not name.strip().isidentifier()):
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

    def _something_else(self) -> bool:
        text = self._up_to(END)
        if text is None:
            return self._give_up_too_long()
        self._buffer = self._buffer[len(text) + len(END) :]
        self._malformed(f"{BEGIN}{text}{END}", f"no name(arguments) follows {BEGIN}")
        return self._go(self._begin)

    def _after(self) -> bool:
        rest = self._buffer.lstrip()
        if rest.startswith(END):
            self._buffer = rest[len(END) :]
        elif not rest or END.startswith(rest):
            return False
        return self._go(self._begin)

    def _end(self) -> None:
        if self._state in (self._begin, self._after):
            self._say(self._buffer)
        else:
            self._malformed(BEGIN + self._buffer, CUT_OFF, cut_off=True)
        self._buffer = ""
