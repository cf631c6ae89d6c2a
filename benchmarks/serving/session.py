"""Launches through a session, by a client that costs as little as `client.py`: it notes when messages come."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from pie_control.client.connection import session_url
from pie_control.http_server import messages as wire
from pie_control.inferlets.events import Ended, Message

from .client import HttpClient


class Launched:
    """An inferlet, and its result. `began`: when its launch was sent; `told`: when the server had accepted it;
    `arrivals`: its messages, and when they came. Times are of `time.perf_counter`, in seconds."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.told = 0.0
        self.arrivals: list[tuple[float, str]] = []
        self.result: Any = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Session:
    """A session with a server."""

    def __init__(self, socket: ClientConnection, uploads: HttpClient) -> None:
        self._socket = socket
        self._uploads = uploads
        self._numbers = itertools.count()
        self._asked: dict[int, Launched] = {}
        self._running: dict[str, Launched] = {}

    async def upload(self, data: bytes) -> str:
        """The hash of a blob that the server has now."""
        await self._uploads.send(self._uploads.raw_request("/v1/blobs", data))
        return hashlib.sha256(data).hexdigest()

    async def launch(
        self, program: str, environment: Mapping[str, str] | None = None, blobs: Mapping[str, str] | None = None
    ) -> Launched:
        """An inferlet that has ended. Raises RuntimeError if it is refused or fails."""
        number = next(self._numbers)
        request = wire.LaunchInferlet(number, program, environment=dict(environment or {}), blobs=dict(blobs or {}))
        launched = self._asked[number] = Launched()
        await self._socket.send(wire.encode(request).decode())
        await launched.done
        return launched

    async def read(self) -> None:
        """Takes what comes, until it is cancelled."""
        async for frame in self._socket:
            now = time.perf_counter()
            for message in wire.decode_frame(frame):
                if isinstance(message, wire.Reply):
                    launched = self._running[message.value] = self._asked.pop(message.id)
                    launched.told = now
                elif isinstance(message, Message):
                    self._running[message.inferlet].arrivals.append((now, message.text))
                elif isinstance(message, Ended):
                    launched = self._running.pop(message.inferlet)
                    launched.result = message.result
                    _end(launched, message.error)
                elif isinstance(message, wire.Error) and message.id is not None:
                    _end(self._asked.pop(message.id), message.error.message)


def _end(launched: Launched, error: str | None) -> None:
    if error:
        launched.done.set_exception(RuntimeError(error))
    else:
        launched.done.set_result(None)


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Session]:
    """A session with the server at `url`."""
    async with (
        HttpClient(url) as uploads,
        connect(session_url(url), compression=None, max_size=None, proxy=None) as one,
    ):
        made = Session(one, uploads)
        reads = asyncio.create_task(made.read())
        try:
            yield made
        finally:
            reads.cancel()
