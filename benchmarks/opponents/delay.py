"""A proxy on the loopback that makes the way to a server as long as that of a distant client.

Bytes arrive half a round trip later than they were sent, in their order, however many are under way: what the proxy
holds back has no influence on what comes behind. A new connection takes a round trip more, as TCP's handshake does.
Bandwidth, loss and slow start are those of the loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast
from urllib.parse import urlsplit

from ..report import BenchmarkError

LEAST = 1e-6
"""Seconds between two deliveries of one way: timers of the same moment may change places."""


class _Way(asyncio.Protocol):
    """One direction of a connection, from its own transport to that of `other`."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._last = 0.0
        self.transport: asyncio.Transport | None = None
        self.other: _Way

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def wait_until(self, when: float) -> None:
        """Delivers nothing before."""
        self._last = max(self._last, when)

    def data_received(self, data: bytes) -> None:
        self._deliver(self.other.write, data)

    def eof_received(self) -> bool:
        self._deliver(self.other.end)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._deliver(self.other.close)

    def _deliver(self, take: object, *data: bytes) -> None:
        self._last = max(self._loop.time() + self._delay, self._last + LEAST)
        self._loop.call_at(self._last, take, *data)  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def end(self) -> None:
        """The sender has said everything; it may listen still."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write_eof()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Closes it, whatever is under way."""
        if self.transport is not None:
            self.transport.abort()


class _FromClient(_Way):
    """Connects to the server first; what the client has sent meanwhile waits."""

    def __init__(self, place: tuple[str, int], delay: float) -> None:
        super().__init__(delay)
        self._place = place
        self.other = _Way(delay)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        assert self.transport is not None
        self.other.other = self
        try:
            await self._loop.create_connection(lambda: self.other, *self._place)
        except OSError:  # nobody is there
            self.transport.abort()
            return
        self.wait_until(self._loop.time() + 3 * self._delay)  # the handshake, and the way of the first bytes
        self.transport.resume_reading()


@contextlib.asynccontextmanager
async def delayed(url: str, round_trip_ms: float) -> AsyncIterator[str]:
    """The address at which the server at `url` is so far away. With 0 it is `url` itself. Raises BenchmarkError."""
    if not round_trip_ms:
        yield url
        return
    parts = urlsplit(url)
    if parts.scheme == "https":
        raise BenchmarkError(f"the way to {url} cannot be made longer, as https is: take http, or a round trip of 0")
    place = parts.hostname or "127.0.0.1", parts.port or 80
    loop = asyncio.get_running_loop()
    connections: list[_FromClient] = []

    def connected() -> _FromClient:
        connections.append(_FromClient(place, round_trip_ms / 2e3))
        return connections[-1]

    async with await loop.create_server(connected, "127.0.0.1", 0, backlog=1024) as server:
        try:
            yield f"{parts.scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}{parts.path}"
        finally:  # a server waits for its connections, from Python 3.12 on
            for one in connections:
                one.abort()
                one.other.abort()
