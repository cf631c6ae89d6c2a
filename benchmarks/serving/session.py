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
from websockets.exceptions import ConnectionClosed

from pie_control.client import ServerUnavailable
from pie_control.client.connection import session_url
from pie_control.http_server import messages as wire
from pie_control.inferlets.events import Ended, Message

from .client import HttpClient

LOST = "the connection to the server broke"


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
        """An inferlet that has ended. Raises RuntimeError if it is refused or fails, ServerUnavailable if the server is
        lost."""
        number = next(self._numbers)
        request = wire.LaunchInferlet(number, program, environment=dict(environment or {}), blobs=dict(blobs or {}))
        launched = self._asked[number] = Launched()
        try:
            await self._socket.send(wire.encode(request).decode())
        except ConnectionClosed as error:
            raise ServerUnavailable(LOST) from error
        await launched.done
        return launched

    async def read(self) -> None:
        """Takes what comes, until it is cancelled or the server is lost. Then nothing that was launched can end."""
        try:
            async for frame in self._socket:
                self._take(frame, time.perf_counter())
        except ConnectionClosed:
            pass
        finally:
            for launched in (*self._asked.values(), *self._running.values()):
                _end(launched, ServerUnavailable(LOST))

    def _take(self, frame: str | bytes, now: float) -> None:
        for message in wire.decode_frame(frame):
            if isinstance(message, wire.Reply):
                launched = self._running[message.value] = self._asked.pop(message.id)
                launched.told = now
            elif isinstance(message, Message):
                self._running[message.inferlet].arrivals.append((now, message.text))
            elif isinstance(message, Ended):
                launched = self._running.pop(message.inferlet)
                launched.result = message.result
                _end(launched, RuntimeError(message.error) if message.error else None)
            elif isinstance(message, wire.Error) and message.id is not None:
                _end(self._asked.pop(message.id), RuntimeError(message.error.message))


def _end(launched: Launched, error: Exception | None) -> None:
    if launched.done.done():  # nobody waits any more
        return
    if error is not None:
        launched.done.set_exception(error)
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
