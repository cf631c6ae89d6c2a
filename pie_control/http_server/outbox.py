"""What waits to be sent to one client: bounded, and taken all at once, so that a busy loop turn costs one frame."""

from __future__ import annotations

import asyncio

from .messages import encode


class Outbox:
    """Encoded messages for one connection. Used on the loop's thread only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._items: list[bytes] = []
        self._bytes = 0
        self._ready = asyncio.Event()
        self.overflow = asyncio.Event()

    def put(self, message: object) -> None:
        """Adds a message. Beyond the limit everything is dropped and `overflow` is set: the client does not read."""
        if self.overflow.is_set():
            return
        item = encode(message)
        self._items.append(item)
        self._bytes += len(item) + 1
        if self._bytes > self._limit:
            self.overflow.set()
            self._items.clear()
        else:
            self._ready.set()

    async def take(self) -> list[bytes]:
        """Waits until there is something and returns all of it."""
        await self._ready.wait()
        self._ready.clear()
        items, self._items, self._bytes = self._items, [], 0
        return items
