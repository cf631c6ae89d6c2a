"""What waits to be sent on one connection. A frame takes what is there, so that a busy loop turn costs one frame.

Replies go first. Events stay with their inferlets until the connection takes them, from one inferlet after another: one
that sends much delays the others by at most its next message, and only itself waits for room (`Outbox`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ..messages import encode

FRAME_BYTES = 64 << 10
"""A frame ends with the message that reaches this size."""
SHARE_BYTES = 8 << 10
"""An inferlet's part of a frame ends with the message that reaches this size, while others have events too."""
MAX_REPLY_BYTES = 1 << 20
"""Replies that wait for the client: with more, its next request waits."""


TakeEvents = Callable[[list[bytes], int], int]
"""Adds events of one inferlet, encoded, up to the one with which they have this number of bytes; how many they have.
With fewer, it has no more, and is no longer in turn."""


class SendBuffer:
    """Encoded replies, and the sources that have events, for one connection. Used on the loop's thread only."""

    def __init__(self) -> None:
        self._replies: deque[bytes] = deque()
        self._reply_bytes = 0
        self._sources: deque[TakeEvents] = deque()
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def put(self, reply: object) -> None:
        """Adds a reply, whatever its size: `room` is what bounds them."""
        item = encode(reply)
        self._replies.append(item)
        self._reply_bytes += len(item)
        if self._reply_bytes > MAX_REPLY_BYTES:
            self._room.clear()
        self._ready.set()

    async def room(self) -> None:
        """Waits until the client has read most replies."""
        await self._room.wait()

    def add(self, source: TakeEvents) -> None:
        """Gives a turn to a source, which has events and is not in turn."""
        self._sources.append(source)
        self._ready.set()

    def close(self) -> None:
        """Nobody takes what is left."""
        self._replies.clear()
        self._sources.clear()

    @property
    def has_more(self) -> bool:
        """Whether `take` would return at once."""
        return self._ready.is_set()

    async def take(self) -> list[bytes]:
        """Waits until there are messages; returns those of the next frame, which may be none."""
        await self._ready.wait()
        items: list[bytes] = []
        size = self._take_replies(items)
        while self._sources and size < FRAME_BYTES:
            size += self._take_share(items, FRAME_BYTES - size)
        if not self._replies and not self._sources:
            self._ready.clear()
        return items

    def _take_replies(self, items: list[bytes]) -> int:
        size = 0
        while self._replies and size < FRAME_BYTES:
            item = self._replies.popleft()
            size += len(item)
            items.append(item)
        self._reply_bytes -= size
        if self._reply_bytes <= MAX_REPLY_BYTES:
            self._room.set()
        return size

    def _take_share(self, items: list[bytes], most: int) -> int:
        source = self._sources.popleft()
        share = min(most, SHARE_BYTES) if self._sources else most
        size = source(items, share)
        if size >= share:
            self._sources.append(source)
        return size
