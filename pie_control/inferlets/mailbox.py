"""The mail between an inferlet and its client: messages in, messages and log lines out, all bounded."""

from __future__ import annotations

import heapq
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ..config import InferletLimits
from ..errors import Overloaded, QuotaExceeded
from ..texts import byte_size, cut
from .events import Ended, Event, LogLine, Message

Listener = Callable[[Event], None]

logger = logging.getLogger(__name__)

MAX_INBOX_BYTES = 8 << 20
"""Limit for messages that an inferlet has not received."""
IN_FLIGHT_BYTES = 256 << 10
"""Messages that wait for a client that reads: with more, their sender waits. Enough for the fastest reader, since it
empties the outbox in each turn of the loop."""
UNREAD_BYTES = 4 << 20
"""The same while no client reads: many programs end before a client comes."""
MAX_KEPT_BYTES = 8 << 20
"""Beyond it, the messages of a sender that does not wait are refused."""
EVENT_BYTES = 64
"""Counted for each event in addition to its text."""


class Received(NamedTuple):
    """A message to the inferlet, with its number in the order of arrival."""

    number: int
    text: str


class Inbox:
    """Messages that the inferlet has not received yet, in the order of arrival."""

    __slots__ = ("_bytes", "_count", "_messages")

    def __init__(self) -> None:
        self._messages: list[Received] = []
        self._bytes = self._count = 0

    def put(self, text: str) -> None:
        """Adds a message; raises Overloaded if too many wait."""
        if self._bytes + byte_size(text) > MAX_INBOX_BYTES:
            raise Overloaded(f"{len(self._messages)} messages wait for the inferlet: let it receive some first")
        self._count += 1
        self.put_back(Received(self._count, text))

    def put_back(self, message: Received) -> None:
        """Puts a message whose receiver was cancelled back in its place."""
        heapq.heappush(self._messages, message)
        self._bytes += byte_size(message.text) + EVENT_BYTES

    def try_get(self) -> Received | None:
        if not self._messages:
            return None
        message = heapq.heappop(self._messages)
        self._bytes -= byte_size(message.text) + EVENT_BYTES
        return message


class Outbox:
    """Events for the client, in order, until a reader takes them. A slow reader, or none, makes the sender wait: that
    costs no other inferlet anything. `logs` has the newest lines, taken or not.

    Messages: above a level, `has_room` is false and senders should wait; `when_room` tells them when to go on. One that
    does not wait is refused at MAX_KEPT_BYTES. Log lines never wait: they are dropped when too many were not taken. The
    last event always fits.
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
        "_log_lines",
        "_notify",
        "_partial",
        "_senders",
        "dropped_lines",
    )

    def __init__(self, inferlet: str, limits: InferletLimits) -> None:
        self._inferlet = inferlet
        self._limits = limits
        self._notify: Callable[[], None] | None = None
        self._events: deque[Event] = deque()
        self._ended: Ended | None = None
        self._kept_bytes = self._kept_log_bytes = 0
        self._senders: list[Callable[[], None]] = []
        self._log_lines: deque[LogLine] = deque()
        self._log_bytes = 0
        self._left_out = 0  # lines that the reader does not get
        self._partial = {"stdout": b"", "stderr": b""}
        self.dropped_lines = 0

    # ---- for the reader ----

    def attach(self, notify: Callable[[], None]) -> None:
        """Calls `notify` now if there are events, and from now on when one comes. Every reader gets the end."""
        self._notify = notify
        if self._ended is not None and not self._events:
            self._events.append(self._ended)
        if self._events:
            notify()

    def detach(self) -> None:
        """Events are kept for the next reader."""
        self._notify = None
        self._wake_senders()  # there is more room without a reader

    def take(self) -> Event | None:
        """The next event, or None if there is none now."""
        if not self._events:
            return None
        event = self._events.popleft()
        if type(event) is Message:
            self._kept_bytes -= byte_size(event.text) + EVENT_BYTES
            if self._senders:
                self._wake_senders()
        elif type(event) is LogLine:
            self._kept_log_bytes -= _size_of(event)
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

    def has_room(self, size: int = 0) -> bool:
        """Whether a message of `size` bytes would be kept without that its sender should wait."""
        return self._kept_bytes + size <= (UNREAD_BYTES if self._notify is None else IN_FLIGHT_BYTES)

    def when_room(self, call: Callable[[], None]) -> None:
        """Calls back once, when there is room; at once if there is."""
        if self.has_room():
            call()
        else:
            self._senders.append(call)

    def _wake_senders(self) -> None:
        if self.has_room():
            senders, self._senders = self._senders, []
            for call in senders:
                call()

    def send(self, text: str) -> None:
        """Sends a message; raises QuotaExceeded if too much waits for the client."""
        if self._kept_bytes > MAX_KEPT_BYTES:
            why = "its client reads slowly" if self._notify else "no client reads"
            raise QuotaExceeded(
                f"{why}, and {self._kept_bytes} bytes of messages wait for it: "
                "await the future that `send` returns before you send more"
            )
        self._kept_bytes += byte_size(text) + EVENT_BYTES
        self._emit(Message(text, inferlet=self._inferlet))

    def log(self, stream: str, text: str) -> None:
        """Adds a line to the log, cut to the maximum size of a message."""
        line = LogLine(time.time(), stream, cut(text, self._limits.max_message_bytes), inferlet=self._inferlet)
        self._log_lines.append(line)
        size = _size_of(line)
        self._log_bytes += size
        while self._log_bytes > self._limits.max_log_bytes and len(self._log_lines) > 1:
            self._log_bytes -= _size_of(self._log_lines.popleft())
            self.dropped_lines += 1
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
            self._kept_log_bytes += _size_of(line)
            self._emit(line)

    def write(self, stream: str, data: bytes) -> None:
        """Takes bytes of stdout or stderr, and adds whole lines to the log."""
        *lines, rest = (self._partial[stream] + data).split(b"\n")
        if len(rest) > self._limits.max_message_bytes:
            lines, rest = [*lines, rest], b""
        self._partial[stream] = rest
        for line in lines:
            self.log(stream, line.decode("utf-8", "replace"))

    def end(self, ended: Ended) -> None:
        """Adds incomplete lines to the log and sends the last event."""
        for stream, rest in self._partial.items():
            if rest:
                self.log(stream, rest.decode("utf-8", "replace"))
        self._partial = {"stdout": b"", "stderr": b""}
        self._tell_left_out()
        self._senders.clear()
        self._ended = ended
        self._emit(ended)

    def logs(self) -> tuple[LogLine, ...]:
        return tuple(self._log_lines)

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        if self._notify is not None:
            self._notify()


def _size_of(line: LogLine) -> int:
    return byte_size(line.text) + EVENT_BYTES
