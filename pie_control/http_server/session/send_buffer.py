"""What waits to be sent on one connection: bounded, and taken all at once, so that a busy loop turn costs one frame."""

from __future__ import annotations

import asyncio

from ..messages import encode


class SendBuffer:
    """Encoded messages for one connection. Used on the loop's thread only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._items: list[bytes] = []
        self._bytes = 0
        self._ready = asyncio.Event()
        self.overflow = asyncio.Event()

    def put(self, message: object) -> None:
        """Adds a message. A message beyond the limit drops everything and sets `overflow`: the client does not read."""
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
        """Waits until there are messages and returns all of them."""
        await self._ready.wait()
        self._ready.clear()
        items, self._items, self._bytes = self._items, [], 0
        return items
