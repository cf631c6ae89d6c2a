"""What passes between an inferlet and its client: messages in, messages and log lines out, all bounded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ..config import InferletLimits
from ..errors import Overloaded, QuotaExceeded
from .events import Ended, Event, LogLine, Message

Listener = Callable[[Event], None]

MAX_INBOX_BYTES = 8 << 20
"""Messages to an inferlet that it has not received."""
MAX_KEPT_BYTES = 8 << 20
"""Messages of an inferlet that no client has read."""
EVENT_BYTES = 64
"""What an event is counted for beside its text."""


class Inbox:
    """Messages that the inferlet has not received yet."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self) -> None:
        self._messages: deque[str] = deque()
        self._bytes = 0

    def put(self, text: str) -> None:
        """Raises Overloaded when the inferlet does not keep up."""
        if self._bytes + len(text) > MAX_INBOX_BYTES:
            raise Overloaded(f"{len(self._messages)} messages wait for the inferlet: let it receive some first")
        self._messages.append(text)
        self._bytes += len(text) + EVENT_BYTES

    def put_back(self, text: str) -> None:
        """Returns a message whose receiver was cancelled; it is received next."""
        self._messages.appendleft(text)
        self._bytes += len(text) + EVENT_BYTES

    def try_get(self) -> str | None:
        if not self._messages:
            return None
        text = self._messages.popleft()
        self._bytes -= len(text) + EVENT_BYTES
        return text


class Outbox:
    """Events for the client. With no listener they are kept, within bounds: messages until the inferlet gets an error
    at `send`, log lines until the oldest are dropped."""

    __slots__ = (
        "_kept",
        "_kept_bytes",
        "_limits",
        "_listener",
        "_log_bytes",
        "_log_lines",
        "_partial",
        "dropped_lines",
    )

    def __init__(self, limits: InferletLimits) -> None:
        self._limits = limits
        self._listener: Listener | None = None
        self._kept: deque[Event] = deque()
        self._kept_bytes = 0
        self._log_lines: deque[LogLine] = deque()
        self._log_bytes = 0
        self._partial = {"stdout": b"", "stderr": b""}
        self.dropped_lines = 0

    def attach(self, listener: Listener) -> None:
        """Sends events to a listener from now on, those that were kept first."""
        self._listener = listener
        kept, self._kept, self._kept_bytes = self._kept, deque(), 0
        for event in kept:
            listener(event)

    def detach(self) -> None:
        self._listener = None

    def send(self, text: str) -> None:
        """Raises QuotaExceeded if nobody reads."""
        if self._listener is None and self._kept_bytes + len(text) > MAX_KEPT_BYTES:
            raise QuotaExceeded(f"no client reads, and {self._kept_bytes} bytes of messages are kept: send less")
        self._emit(Message(text), len(text))

    def log(self, stream: str, text: str) -> None:
        """Adds a line to the log, cut to the size of a message."""
        line = LogLine(time.time(), stream, text[: self._limits.max_message_bytes])
        self._log_lines.append(line)
        self._log_bytes += len(line.text)
        while self._log_bytes > self._limits.max_log_bytes and len(self._log_lines) > 1:
            self._log_bytes -= len(self._log_lines.popleft().text)
            self.dropped_lines += 1
        if self._listener is not None or self._kept_bytes + len(text) <= MAX_KEPT_BYTES:
            self._emit(line, len(text))

    def write(self, stream: str, data: bytes) -> None:
        """Takes bytes of stdout or stderr; whole lines go to the log."""
        *lines, rest = (self._partial[stream] + data).split(b"\n")
        if len(rest) > self._limits.max_message_bytes:
            lines, rest = [*lines, rest], b""
        self._partial[stream] = rest
        for line in lines:
            self.log(stream, line.decode("utf-8", "replace"))

    def end(self, ended: Ended) -> None:
        """Flushes unfinished lines and sends the last event."""
        for stream, rest in self._partial.items():
            if rest:
                self.log(stream, rest.decode("utf-8", "replace"))
        self._partial = {"stdout": b"", "stderr": b""}
        self._emit(ended, 0)

    def logs(self) -> tuple[LogLine, ...]:
        return tuple(self._log_lines)

    def _emit(self, event: Event, size: int) -> None:
        if self._listener is not None:
            self._listener(event)
            return
        self._kept.append(event)
        self._kept_bytes += size + EVENT_BYTES
