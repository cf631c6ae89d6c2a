"""Events of one inferlet as server-sent events, for clients like curl."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from pie_control.inferlets.events import Ended, Event, LogLine, Message
from pie_control.inferlets.inferlet import Inferlet

from ..attachments import Attachments, attach
from ..messages import encode

MAX_WAITING_EVENTS = 100_000
"""Events kept for a slow client; beyond that the stream ends and the inferlet keeps its events again."""
COMMENT_SECONDS = 15.0
"""Time without events after which a comment is sent, which detects a client that vanished."""


class _Stream:
    """Listener of one inferlet: a bounded queue of encoded events."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._closed = False

    def __call__(self, event: Event) -> None:
        if self._closed:
            return
        if self._queue.qsize() >= MAX_WAITING_EVENTS:
            self._end(_format("error", {"code": "overloaded", "message": "the client reads too slowly"}))
            return
        self._queue.put_nowait(_encode_event(event))
        if isinstance(event, Ended):
            self._end()

    def _end(self, last: bytes | None = None) -> None:
        self._closed = True
        if last is not None:
            self._queue.put_nowait(last)
        self._queue.put_nowait(None)

    async def take(self) -> bytes | None:
        """The next event, a comment after `COMMENT_SECONDS` without one, or None at the end."""
        try:
            return await asyncio.wait_for(self._queue.get(), COMMENT_SECONDS)
        except TimeoutError:
            return b": nothing new\n\n"


def _encode_event(event: Event) -> bytes:
    match event:
        case Message(text):
            return _format("message", {"text": text})
        case LogLine(time, stream, text):
            return _format("log", {"time": time, "stream": stream, "text": text})
        case Ended(status, result, error):
            return _format("ended", {"status": status, "result": result, "error": error})


def _format(kind: str, value: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + encode(value) + b"\n\n"


class _EventStream(StreamingResponse):
    """Holds its claim while it runs, even if the client leaves before the first byte."""

    def __init__(self, inferlet: Inferlet, attachments: Attachments) -> None:
        self._stream = _Stream()
        self._inferlet = inferlet
        self._attachments = attachments
        attachments.claim(inferlet.id, self)
        super().__init__(self._produce(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            attach(self._inferlet, self._stream)
            await super().__call__(scope, receive, send)
        finally:
            self._inferlet.detach()
            self._attachments.release(self._inferlet.id, self)

    async def _produce(self) -> AsyncIterator[bytes]:
        while (item := await self._stream.take()) is not None:
            yield item


def stream_events(inferlet: Inferlet, attachments: Attachments) -> StreamingResponse:
    """A response that streams until the inferlet ends or the client leaves; raises Conflict."""
    return _EventStream(inferlet, attachments)
