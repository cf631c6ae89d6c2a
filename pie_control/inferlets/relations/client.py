"""What an inferlet and its client say to each other, on the inferlet's side. The client of a child is its parent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...config import InferletLimits
from ...errors import QuotaExceeded
from ...texts import byte_size
from ..mailbox import NO_BLOBS, Received, Sender, size_of
from ..waiting.waits import Waits
from .mail import Mailbox, send_paced


class ClientMail:
    """Messages from the client of one inferlet, and messages and log lines to it."""

    __slots__ = ("_box", "_max_message_bytes", "_received", "_waits", "number", "sender", "unread_bytes")

    def __init__(
        self,
        number: int,
        limits: InferletLimits,
        waits: Waits,
        sender: Sender,
        received: Callable[[Received], None],
    ) -> None:
        """`number`: that of the inferlet. `received` hears of each message that the inferlet has taken."""
        self.number = number
        self.sender = sender
        self._max_message_bytes = limits.max_message_bytes
        self._waits = waits
        self._received = received
        self.unread_bytes: int  # of messages that it has not taken, with their blobs
        self.forget()

    # ---- for the client ----

    def post(self, text: str, sender: str = "", blobs: Mapping[str, bytes] = NO_BLOBS) -> None:
        """A message of its client, or of its parent."""
        self.unread_bytes += size_of(text) + sum(map(len, blobs.values()))
        self._box.put(text, sender, blobs)

    def forget(self) -> None:
        """Drops the messages that it has not taken."""
        self.unread_bytes = 0
        self._box = Mailbox(self._waits, self._take, "a message of its client")

    def _take(self, message: Received) -> None:
        self.unread_bytes -= message.size + message.blob_bytes
        self._received(message)

    def took(self, size: int) -> None:
        """Its parent has taken so many bytes of its messages, since its beginning."""
        self.sender.room(size, True)

    # ---- for the inferlet ----

    def send(self, text: str, gone: Any = None) -> int | None:
        """Sends a message. If its client is slow, returns a future that gets the value `gone` when there is room for
        more; else None. Raises QuotaExceeded, and sends nothing, if too much waits already."""
        size, sender = self.check_size(text), self.sender
        return send_paced(self._waits, sender, size, partial(sender.send, text), "its client to read", gone)

    def check_size(self, text: str) -> int:
        """Its bytes; raises QuotaExceeded if they are more than a message may have."""
        size, limit = byte_size(text), self._max_message_bytes
        if size > limit:
            raise QuotaExceeded(f"{size} bytes are more than a message may have ({limit}): send it in pieces")
        return size

    def receive(self) -> int:
        """A future for the next message; raises QuotaExceeded."""
        future = self._waits.futures.new()
        self._box.receive(future)
        return future

    def log(self, text: str) -> None:
        """Adds a line to the log."""
        self.sender.log("log", text)
