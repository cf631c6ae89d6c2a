"""Formats in which a call stands between two markers, with text around it."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from inferlet_sdk.tools.formats.parser import CUT_OFF, Parser


class MarkedParser(Parser):
    """`begin` call `end`, once for each call. A call is complete with its own end: a model may leave out the marker
    behind it. What is no call is malformed up to that marker."""

    begin: ClassVar[str]
    end: ClassVar[str]
    expected: ClassVar[str]
    """What stands behind `begin`."""

    def _begin(self) -> bool:
        return self._text_until(self.begin) and self._go(self._inside)

    @abstractmethod
    def _inside(self) -> bool:
        """Behind `begin`. Goes to `_after` with the end of the call, or to `_something_else`."""

    def _something_else(self) -> bool:
        text = self._up_to(self.end)
        if text is None:
            return self._give_up_too_long()
        self._buffer = self._buffer[len(text) + len(self.end) :]
        self._malformed(f"{self.begin}{text}{self.end}", f"no {self.expected} follows {self.begin}")
        return self._go(self._begin)

    def _after(self) -> bool:
        """Behind a call: the end marker is taken away if it is there."""
        rest = self._buffer.lstrip()
        if rest.startswith(self.end):
            self._buffer = rest[len(self.end) :]
        elif not rest or self.end.startswith(rest):
            return False
        return self._go(self._begin)

    def _end(self) -> None:
        if self._state in (self._begin, self._after):
            self._say(self._buffer)
        else:
            self._malformed(self.begin + self._buffer, CUT_OFF, cut_off=True)
        self._buffer = ""
