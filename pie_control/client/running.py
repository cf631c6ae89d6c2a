"""One inferlet, for the client that launched it or attached to it."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from pie_control.errors import InferletEnded, PieError
from pie_control.inferlets.events import Ended, Event, LogLine, Message

Content = str | os.PathLike[str] | bytes
"""What a blob is made of: the path of a file, or bytes."""


class Link(Protocol):
    """Where the inferlet runs: behind a connection, or in this process."""

    async def send(self, inferlet: str, text: str, blobs: Mapping[str, Content]) -> None:
        """Sends a message to the inferlet, with blobs by name."""

    async def terminate(self, inferlet: str) -> None:
        """Ends the inferlet."""

    async def inferlet(self, inferlet: str, stack: bool = False) -> dict[str, Any]:
        """What `Client.inferlet` gives."""

    async def logs(self, inferlet: str) -> tuple[LogLine, ...]:
        """The log of the inferlet."""


class Running:
    """A running inferlet.

    It keeps messages until `receive`, `async for message in running` or `events` reads them. Each message goes to one
    reader only.
    """

    def __init__(self, id: str, link: Link) -> None:
        self.id = id
        self._link = link
        self._events: deque[Event] = deque()
        self._ended: Ended | None = None
        self._lost: PieError | None = None
        self._changed = asyncio.Event()

    # ---- for the link ----

    def deliver(self, event: Event) -> None:
        """Takes an event of the inferlet."""
        if isinstance(event, Ended):
            self._ended = event
        self._events.append(event)
        self._changed.set()

    def lose(self, error: PieError) -> None:
        """The connection broke: no more events will come. Events delivered before can still be read."""
        self._lost = error
        self._changed.set()

    # ---- for users ----

    async def send(self, text: str, *, blobs: Mapping[str, Content] | None = None) -> None:
        """Sends a message, which the inferlet's `receive` returns; raises Conflict if the inferlet has ended,
        Overloaded if it does not keep up. `blobs`: files (paths) or bytes, such as images, that come with the message,
        by name."""
        await self._link.send(self.id, text, blobs or {})

    async def receive(self) -> str:
        """The next message of the inferlet; raises InferletEnded if it has ended and no message is left."""
        while (event := await self._next()) is not None:
            if isinstance(event, Message):
                return event.text
        ended = self._ended
        assert ended is not None, "events end with Ended"
        raise InferletEnded(ended.status, ended.error or f"inferlet {self.id} has ended and sends no more messages")

    async def __aiter__(self) -> AsyncIterator[str]:
        while (event := await self._next()) is not None:
            if isinstance(event, Message):
                yield event.text

    async def events(self) -> AsyncIterator[Event]:
        """Messages, log lines (if `launch` asked for them), and Ended as the last; raises ServerUnavailable if the
        connection breaks."""
        while (event := await self._next()) is not None:
            yield event

    async def _next(self) -> Event | None:
        while not self._events:
            if self._ended is not None:
                return None
            await self._wait()
        return self._events.popleft()

    async def result(self) -> Any:
        """Waits for the end; returns the inferlet's result, or None. Messages stay to be read.

        Raises InferletEnded with the traceback or reason unless the inferlet finished.
        """
        while self._ended is None:
            await self._wait()
        if self._ended.status != "finished":
            raise InferletEnded(self._ended.status, self._ended.error or "")
        return None if self._ended.result is None else json.loads(self._ended.result)

    async def info(self, stack: bool = False) -> dict[str, Any]:
        """Its status, what it uses and waits for, as `Client.inferlet` gives them."""
        return await self._link.inferlet(self.id, stack)

    async def logs(self) -> tuple[LogLine, ...]:
        """The lines of its stdout, stderr and `log` that the server keeps."""
        return await self._link.logs(self.id)

    async def terminate(self) -> None:
        """Ends the inferlet; nothing happens if it has ended."""
        await self._link.terminate(self.id)

    async def _wait(self) -> None:
        if self._lost is not None:
            raise self._lost
        self._changed.clear()
        await self._changed.wait()
