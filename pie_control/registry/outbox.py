"""What an inferlet has said and its client has not taken yet, and its log. All bounded."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from msgspec.structs import replace

from ..config import InferletLimits
from ..inferlets.events import Ended, Event, LogLine, Message
from ..inferlets.mailbox import IN_FLIGHT_BYTES, UNREAD_BYTES, size_of

Listener = Callable[[Event], None]

logger = logging.getLogger(__name__)

TOLD_BYTES = IN_FLIGHT_BYTES // 4
"""The inferlet hears that its client reads each time as much was taken."""


class Outbox:
    """Events for the client, in order, until a reader takes them. `logs` has the newest lines, taken or not.

    A slow reader, or none, makes the sender wait (`pie_control.inferlets.mailbox.Sender`), which hears by `tell_room`
    how many bytes of messages were taken since the beginning, and whether somebody reads. Log lines never wait: they
    are dropped when too many were not taken. The last event always fits.
    """

    __slots__ = (
        "_ended",
        "_events",
        "_inferlet",
        "_kept_bytes",
        "_kept_log_bytes",
        "_left_out",
        "_limits",
        "_log_bytes",
        "_log_dropped",
        "_log_lines",
        "_notify",
        "_taken",
        "_tell_room",
        "_told",
    )

    def __init__(self, inferlet: str, limits: InferletLimits, tell_room: Callable[[int, bool], None]) -> None:
        self._inferlet = inferlet
        self._limits = limits
        self._tell_room = tell_room
        self._notify: Callable[[], None] | None = None
        self._events: deque[Event] = deque()
        self._ended: Ended | None = None
        self._kept_bytes = self._kept_log_bytes = 0
        self._taken = self._told = 0  # bytes of messages
        self._log_lines: deque[LogLine] = deque()
        self._log_bytes = self._log_dropped = 0
        self._left_out = 0  # lines that the reader does not get

    # ---- for the reader ----

    def attach(self, notify: Callable[[], None]) -> None:
        """Calls `notify` now if there are events, and from now on when one comes. Every reader gets the end."""
        self._notify = notify
        if self._ended is not None and not self._events:
            self._events.append(self._ended)
        self._tell()
        if self._events:
            notify()

    def detach(self) -> None:
        """Events are kept for the next reader."""
        self._notify = None
        self._tell()  # there is more room without a reader

    def _tell(self) -> None:
        if self._ended is None:
            self._told = self._taken
            self._tell_room(self._taken, self._notify is not None)

    def take(self) -> Event | None:
        """The next event, or None if there is none now."""
        if not self._events:
            return None
        event = self._events.popleft()
        if type(event) is Message:
            size = size_of(event.text)
            self._kept_bytes -= size
            self._taken += size
            if self._taken - self._told >= TOLD_BYTES:
                self._tell()
        elif type(event) is LogLine:
            self._kept_log_bytes -= size_of(event.text)
        else:
            self._notify = None  # nothing comes behind the end; this may lead back, too
        return event

    def push_to(self, listener: Listener) -> None:
        """Gives a listener, which must not block, all events: first those that were kept."""

        def push() -> None:
            while self._notify is push and (event := self.take()) is not None:
                try:
                    listener(event)
                except Exception:  # not the inferlet's fault, and its end must not fail
                    logger.exception("a listener failed and hears no more")
                    self.detach()

        self.attach(push)

    # ---- for the inferlet ----

    @property
    def kept_bytes(self) -> int:
        """Size of the log and of the events that nobody has taken."""
        return self._kept_bytes + self._kept_log_bytes + self._log_bytes

    @property
    def is_full(self) -> bool:
        """Whether so much waits for a reader that the inferlet waits as well, or soon will."""
        return self._kept_bytes >= IN_FLIGHT_BYTES // 2

    def said(self, text: str) -> None:
        """The inferlet has a message for its client."""
        self._kept_bytes += size_of(text)
        self._emit(Message(text, inferlet=self._inferlet))

    def ended(self, event: Ended) -> None:
        """The inferlet has ended."""
        self._tell_left_out()
        self._ended = event
        self._tell_room = lambda _taken, _read: None  # the entry's own would keep it until a full collection
        self._emit(event)

    def restore(self, lines: Iterable[LogLine]) -> None:
        """The log of an inferlet that ended under a server before; its reader gets the end alone."""
        for line in lines:
            self._log_lines.append(line)
            self._log_bytes += size_of(line.text)

    def logged(self, line: LogLine) -> None:
        """The inferlet has a line for its log."""
        self._log_lines.append(line)
        size = size_of(line.text)
        self._log_bytes += size
        while self._log_bytes > self._limits.max_log_bytes and len(self._log_lines) > 1:
            self._log_bytes -= size_of(self._log_lines.popleft().text)
            self._log_dropped += 1
        if self._kept_log_bytes + size > max(self._limits.max_log_bytes, self._notify is not None and UNREAD_BYTES):
            self._left_out += 1
            return
        self._tell_left_out()
        self._kept_log_bytes += size
        self._emit(line)

    def _tell_left_out(self) -> None:
        if self._left_out:
            text = f"{self._left_out} lines are left out here, because no client read them in time"
            self._left_out = 0
            line = LogLine(time.time(), "log", text, inferlet=self._inferlet)
            self._kept_log_bytes += size_of(line.text)
            self._emit(line)

    def logs(self, after: int = 0) -> tuple[LogLine, ...]:
        """The lines that are kept, behind the one of this number, with their numbers."""
        skipped = min(max(0, after - self._log_dropped), len(self._log_lines))
        lines = enumerate(islice(self._log_lines, skipped, None), self._log_dropped + skipped + 1)
        return tuple(replace(line, number=number) for number, line in lines)

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        if self._notify is not None:
            self._notify()
