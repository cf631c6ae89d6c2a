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
MOST_LINES, LINES_PER_SECOND = 10_000, 2_000
"""Lines that go at once, and as many more a second: each takes the control process some microseconds, however short it
is, and a program can write a hundred thousand a second. When all have gone, more go when half of them may."""
ALWAYS_LINES = 64
"""Lines of one inferlet that go meanwhile."""


class LogLines:
    """Those of a host. `say` puts a line of an inferlet among what is sent next; `unsent`: bytes that were sent, and
    that the control process has not taken."""

    def __init__(
        self,
        say: Callable[[int, LogLine], None],
        unsent: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._unsent = unsent
        self._clock = clock
        self._room = float(MOST_LINES)  # for lines, as of `_at`
        self._at = clock()
        self._is_full = False  # too many have gone
        self._lines_of: Counter[int] = Counter()  # lines that have gone since then, by inferlet
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
        """Whether a line of so many bytes of an inferlet may go; it is counted then."""
        self._gain_room()
        if self._is_full and self._lines_of[number] >= ALWAYS_LINES:
            return False
        if self._waiting + self._unsent() + size > MOST_UNSENT and self._of[number] + size > ALWAYS_SENT:
            return False
        self._waiting += size
        self._of[number] += size
        if self._is_full:
            self._lines_of[number] += 1
        else:
            self._room -= 1
            self._is_full = self._room < 1
        return True

    def _gain_room(self) -> None:
        now = self._clock()
        self._room, self._at = min(MOST_LINES, self._room + (now - self._at) * LINES_PER_SECOND), now
        if self._is_full and self._room >= MOST_LINES / 2:
            self._is_full = False
            self._lines_of.clear()

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
