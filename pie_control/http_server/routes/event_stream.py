"""Events of one inferlet as server-sent events, for clients like curl."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from pie_control.errors import Conflict
from pie_control.inferlets.events import Ended, Event, LogLine, Message
from pie_control.registry.entry import Entry

from ..attachments import Attachments
from ..messages import encode

COMMENT_SECONDS = 15.0
"""Time without events after which a comment is sent: it detects a client that vanished, and proxies keep the
connection."""
CHUNK_BYTES = 64 << 10
"""A chunk ends with the event that reaches this size."""
KEPT_BYTES = 128 << 10
"""Bytes of the last events of an inferlet that are kept, for a client that has lost its connection."""
MOST_DIGITS = 15
"""Digits that the number of an event has at most."""
COMMENT = b": nothing new\n\n"

End = Callable[[], object]


def next_chunk(take: Callable[[], Event | None], encoded: Callable[[Event], bytes]) -> tuple[bytes, Ended | None]:
    """The events that there are, up to a size, and the end if it is the last of them."""
    chunk = b""
    while len(chunk) < CHUNK_BYTES and (event := take()) is not None:
        chunk += encoded(event)
        if isinstance(event, Ended):
            return chunk, event
    return chunk, None


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


class SentEvents:
    """The last events of an inferlet that were sent, each with its number as `id`."""

    def __init__(self) -> None:
        self._events: deque[bytes] = deque()
        self._bytes = self._count = 0
        self.is_over = False

    def encode(self, event: Event) -> bytes:
        """An event that is about to be sent."""
        self._count += 1
        self.is_over = isinstance(event, Ended)
        encoded = b"id: %d\n" % self._count + _encode_event(event)
        self._events.append(encoded)
        self._bytes += len(encoded)
        while self._bytes > KEPT_BYTES and len(self._events) > 1:
            self._bytes -= len(self._events.popleft())
        return encoded

    def after(self, last: str) -> Sequence[bytes]:
        """Those behind an event, given by its number. Raises Conflict if they are not kept."""
        first = self._count - len(self._events)
        number = int(last) if last.isdecimal() and len(last) <= MOST_DIGITS else -1
        if not first <= number <= self._count:
            raise Conflict(
                f"Last-Event-ID: the events from {first + 1} to {self._count} can be sent again, not those behind "
                f"{last[:40]!r}: leave it out to get what comes"
            )
        return tuple(islice(self._events, number - first, None))


class EventStream(StreamingResponse):
    """Streams events of an inferlet, when the client has room for them, until it ends or the client leaves. Holds its
    claim while it runs, even if the client leaves before the first byte."""

    def __init__(
        self,
        inferlet: Entry,
        attachments: Attachments,
        sent: SentEvents,
        last: str | None = None,
        end: End | None = None,
    ) -> None:
        """`last`: the number of the last event that the client has, of those that were sent before. `end`, where the
        same request has launched the inferlet, is called if the client leaves before. Raises Conflict."""
        self._inferlet = inferlet
        self._sent = sent
        self._again = () if last is None else sent.after(last)
        self._end = end
        self._outbox = inferlet.outbox
        self._id = inferlet.id
        self._attachments = attachments
        self._news = asyncio.Event()
        self._gave_way = False
        attachments.claim(inferlet.id, self, comes_back=last is not None)
        status, headers = 200, {"cache-control": "no-store"}
        if end is not None:
            status, headers["location"] = 201, f"/v1/inferlets/{inferlet.id}"
        super().__init__(self._produce(), status, headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._outbox.attach(self._news.set)
            await super().__call__(scope, receive, send)
        finally:
            if not self._gave_way:
                self._outbox.detach()
                self._attachments.release(self._id, self)
            if self._end is not None and self._inferlet.ended is None:
                self._end()

    def give_way(self) -> bool:
        """Its client has come back on another connection, unless the inferlet ends with this one."""
        self._gave_way = self._end is None
        self._news.set()
        return self._gave_way

    async def _produce(self) -> AsyncIterator[bytes]:
        ended = None
        if self._again:
            yield b"".join(self._again)
            if self._sent.is_over:
                return
        while ended is None and not self._gave_way:
            chunk, ended = next_chunk(self._outbox.take, self._sent.encode)
            if chunk:
                yield chunk
                await asyncio.sleep(0)  # sending to a fast client never waits, nor to one that has left, and so ends
            elif not await self._has_news():
                yield COMMENT

    async def _has_news(self) -> bool:
        """Waits for events; False if none come for a while."""
        self._news.clear()
        try:
            async with asyncio.timeout(COMMENT_SECONDS):
                return await self._news.wait()
        except TimeoutError:
            return False
