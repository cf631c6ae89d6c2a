"""The mail between an inferlet and its client, on the inferlet's side: what it received, and what it says."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ..config import InferletLimits
from ..errors import QuotaExceeded
from ..texts import byte_size, cut
from .events import LogLine

IN_FLIGHT_BYTES = 256 << 10
"""Messages that wait for a client that reads: with more, their sender waits. Enough for the fastest reader, since it
empties the outbox in each turn of the loop."""
UNREAD_BYTES = 4 << 20
"""Messages that may wait while no client reads: many programs end before a client comes."""
MAX_KEPT_BYTES = 8 << 20
"""Beyond it, the messages of a sender that does not wait are refused."""
EVENT_BYTES = 64
"""Counted for each event and each message in addition to its text."""


def size_of(text: str) -> int:
    """Bytes that an event with this text counts."""
    return byte_size(text) + EVENT_BYTES


NO_BLOBS: Mapping[str, bytes] = MappingProxyType({})


class Received(NamedTuple):
    """A message to the inferlet, with its number in the order of arrival. `sender`: who it is from, where that is not
    clear. `blobs`: what came with it, by name."""

    number: int
    text: str
    sender: str = ""
    blobs: Mapping[str, bytes] = NO_BLOBS

    @property
    def size(self) -> int:
        """Bytes that it counts, without blobs."""
        return size_of(self.text)

    @property
    def blob_bytes(self) -> int:
        return sum(map(len, self.blobs.values()))


class Inbox:
    """Messages that the inferlet has not received yet, in the order of arrival. Who posts them bounds them."""

    __slots__ = ("_count", "_messages")

    def __init__(self) -> None:
        self._messages: list[Received] = []
        self._count = 0

    def put(self, text: str, sender: str = "", blobs: Mapping[str, bytes] = NO_BLOBS) -> None:
        """Adds a message."""
        self._count += 1
        self.put_back(Received(self._count, text, sender, blobs))

    def put_back(self, message: Received) -> None:
        """Puts a message whose receiver was cancelled back in its place."""
        heapq.heappush(self._messages, message)

    def try_get(self) -> Received | None:
        return heapq.heappop(self._messages) if self._messages else None


class Pace:
    """How far a sender may be ahead of who takes its messages. Above a level the sender should wait."""

    __slots__ = ("_most", "_waiting", "bytes")

    def __init__(self, most: int = IN_FLIGHT_BYTES) -> None:
        self.bytes = 0  # on their way
        self._most = most
        self._waiting: dict[Callable[[], None], None] = {}

    def has_room(self, size: int = 0) -> bool:
        """Whether `size` bytes more would not be too much."""
        return self.bytes + size <= self._most

    def add(self, size: int) -> None:
        """Bytes are on their way; a negative size: they have arrived."""
        self.bytes += size
        if self._waiting and self.has_room():
            waiting, self._waiting = self._waiting, {}
            for call in waiting:
                call()

    def when_room(self, call: Callable[[], None]) -> None:
        """Calls back once, when there is room; at once if there is."""
        if self.has_room():
            call()
        else:
            self._waiting[call] = None

    def forget(self, call: Callable[[], None]) -> None:
        """Does not call back, if it would have."""
        self._waiting.pop(call, None)


class Sender(Pace):
    """What an inferlet says to its client: messages and log lines, in order.

    A slow reader, or none, makes the sender of messages wait: that costs no other inferlet anything. What waits for the
    reader is what was sent less what was taken, of which `room` tells, now and then. One that does not wait is refused
    at MAX_KEPT_BYTES.
    """

    __slots__ = ("_inferlet", "_limits", "_log", "_partial", "_read", "_say", "_sent")

    def __init__(
        self, inferlet: str, limits: InferletLimits, say: Callable[[str], None], log: Callable[[LogLine], None]
    ) -> None:
        """`say` hears each message, `log` each line."""
        super().__init__(UNREAD_BYTES)
        self._inferlet = inferlet
        self._limits = limits
        self._say = say
        self._log = log
        self._sent = 0  # bytes of messages since the beginning
        self._read = False  # whether a client reads
        self._partial = {"stdout": b"", "stderr": b""}

    # ---- messages ----

    def room(self, taken: int, read: bool) -> None:
        """Readers have taken this many bytes since the beginning; `read`: one reads now."""
        self._read = read
        self._most = IN_FLIGHT_BYTES if read else UNREAD_BYTES
        self.add(self._sent - taken - self.bytes)

    def send(self, text: str) -> None:
        """Sends a message; raises QuotaExceeded if too much waits for the client."""
        if self.bytes > MAX_KEPT_BYTES:
            why = "its client reads slowly" if self._read else "no client reads"
            raise QuotaExceeded(
                f"{why}, and {self.bytes} bytes of messages wait for it: "
                "await the future that `send` returns before you send more"
            )
        size = size_of(text)
        self._sent += size
        self.bytes += size
        self._say(text)

    # ---- the log ----

    def log(self, stream: str, text: str) -> None:
        """Adds a line to the log, cut to the maximum size of a message."""
        self._log(LogLine(time.time(), stream, cut(text, self._limits.max_message_bytes), inferlet=self._inferlet))

    def write(self, stream: str, data: bytes) -> None:
        """Takes bytes of stdout or stderr, and adds whole lines to the log."""
        *lines, rest = (self._partial[stream] + data).split(b"\n")
        if len(rest) > self._limits.max_message_bytes:
            lines, rest = [*lines, rest], b""
        self._partial[stream] = rest
        for line in lines:
            self.log(stream, line.decode("utf-8", "replace"))

    # ---- the end ----

    def close(self) -> None:
        """Adds incomplete lines to the log. Nobody who waits for room is called any more."""
        for stream, rest in self._partial.items():
            if rest:
                self.log(stream, rest.decode("utf-8", "replace"))
        self._partial = {"stdout": b"", "stderr": b""}
        self._waiting.clear()
