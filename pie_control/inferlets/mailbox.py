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
MAX_KEPT_BYTES = 8 << 20
"""Limit for messages that no client has read."""
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
    """Events for the client. Without a listener it keeps them in order, within bounds: beyond them `send` raises an
    error, and log lines are dropped. `logs` has the newest lines, heard or not."""

    __slots__ = (
        "_inferlet",
        "_kept",
        "_kept_bytes",
        "_kept_log_bytes",
        "_limits",
        "_listener",
        "_log_bytes",
        "_log_lines",
        "_partial",
        "dropped_lines",
    )

    def __init__(self, inferlet: str, limits: InferletLimits) -> None:
        self._inferlet = inferlet
        self._limits = limits
        self._listener: Listener | None = None
        self._kept: deque[Event] = deque()
        self._kept_bytes = self._kept_log_bytes = 0
        self._log_lines: deque[LogLine] = deque()
        self._log_bytes = 0
        self._partial = {"stdout": b"", "stderr": b""}
        self.dropped_lines = 0

    def attach(self, listener: Listener) -> None:
        """Sends events to a listener from now on, first those that were kept."""
        self._listener = None  # until it has heard these: events emitted meanwhile come after them
        while self._kept:
            listener(self._kept.popleft())
        self._kept_bytes = self._kept_log_bytes = 0
        self._listener = listener

    def detach(self) -> None:
        self._listener = None

    @property
    def kept_bytes(self) -> int:
        """Size of the log and of the events that nobody has heard."""
        return self._kept_bytes + self._kept_log_bytes + self._log_bytes

    def send(self, text: str) -> None:
        """Sends a message; raises QuotaExceeded if nobody reads and too many are kept."""
        if self._listener is None:
            if self._kept_bytes + byte_size(text) > MAX_KEPT_BYTES:
                raise QuotaExceeded(f"no client reads, and {self._kept_bytes} bytes of messages are kept: send less")
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
        if self._listener is not None:
            self._emit(line)
        elif self._kept_log_bytes + size <= self._limits.max_log_bytes:
            self._kept_log_bytes += size
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
        self._emit(ended)

    def logs(self) -> tuple[LogLine, ...]:
        return tuple(self._log_lines)

    def _emit(self, event: Event) -> None:
        if self._listener is None:
            self._kept.append(event)
            return
        try:
            self._listener(event)
        except Exception:  # not the inferlet's fault, and its end must not fail
            logger.exception("a listener failed and hears no more")
            self._listener = None


def _size_of(line: LogLine) -> int:
    return byte_size(line.text) + EVENT_BYTES
