"""Log lines and spans on their way from a host to the control process, which bounds only what has come there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from ..events import LogLine
from ..mailbox import size_of

MOST_UNSENT = 4 << 20
"""Bytes that wait for the control process. While it does not keep up, lines beyond are left out."""
ALWAYS_SENT = 1 << 16
"""Bytes of one inferlet that go nevertheless: another one may be why it does not keep up."""


class LogLines:
    """Those of a host. `say` puts a line of an inferlet among what is sent next; `unsent`: bytes that were sent, and
    that the control process has not taken."""

    def __init__(self, say: Callable[[int, LogLine], None], unsent: Callable[[], int]) -> None:
        self._say = say
        self._unsent = unsent
        self._waiting = 0  # bytes that are sent next
        self._of: Counter[int] = Counter()  # bytes by inferlet, since the control process had taken all
        self._left_out: Counter[int] = Counter()  # lines by inferlet

    def add(self, number: int, line: LogLine) -> None:
        """An inferlet has a line."""
        if self.has_room(number, size_of(line.text)):
            self._tell_left_out(number)
            self._say(number, line)
        else:
            self._left_out[number] += 1

    def has_room(self, number: int, size: int) -> bool:
        """Whether so many bytes of an inferlet may go; they are counted then."""
        if self._waiting + self._unsent() + size > MOST_UNSENT and self._of[number] + size > ALWAYS_SENT:
            return False
        self._waiting += size
        self._of[number] += size
        return True

    def ended(self, number: int) -> None:
        """No more lines of an inferlet come."""
        self._tell_left_out(number)

    def sent(self) -> None:
        """What waited was sent."""
        self._waiting = 0
        if self._of and not self._unsent():
            self._of.clear()

    def _tell_left_out(self, number: int) -> None:
        if count := self._left_out.pop(number, 0):
            text = f"{count} lines are left out here: they came faster than the server could take them"
            self._say(number, LogLine(inferlet=f"i{number}", time=time.time(), stream="log", text=text))
