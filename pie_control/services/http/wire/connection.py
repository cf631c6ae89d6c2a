"""A connection to a server outside, on which one request goes after the other.

A server that sends faster than its response is read waits: no more than READ_BYTES are here that nobody has read.
"""

from __future__ import annotations

import asyncio
from typing import cast

READ_BYTES = 64 << 10
"""Most bytes that are read at a time."""


class Broken(Exception):
    """A connection that has broken, and why."""


class Connection(asyncio.BufferedProtocol):
    """Belongs to the thread of one event loop."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._buffer = bytearray(READ_BYTES)
        self._data = b""  # that has come and was not read; then the transport pauses
        self._ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._has_answered = False  # all that was asked, and may be asked again

    def send(self, message: bytes) -> None:
        """Sends a request, to which a response follows."""
        self._has_answered = False
        self._transport.write(message)

    async def read(self) -> bytes:
        """What comes next; empty at its end. Raises Broken."""
        if not self._data and not self._ended:
            self._transport.resume_reading()
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data, self._data = self._data, b""
        if not data and self._error is not None:
            raise Broken(self._error) from self._error
        return data

    def answered(self, more: bool) -> None:
        """A response has come to its end. `more`: the server takes another request."""
        self._has_answered = more and not self._data and not self._transport.get_write_buffer_size()
        if self._has_answered:
            self._transport.resume_reading()  # to hear of its end

    @property
    def takes_more(self) -> bool:
        """Whether another request can go: the server has said all that was asked, no more, and not its end."""
        return self._has_answered and not self._data and not self._ended

    def close(self) -> None:
        """Idempotent."""
        self._transport.abort()

    # ---- what the transport says ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.pause_reading()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._data += self._buffer[:nbytes]
        self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended, self._error = True, self._error or exc
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
