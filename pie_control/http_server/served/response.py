"""The answer to a request that a program serves: it runs from the launch to the end of its inferlet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.datastructures import Address
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pie_control.errors import PieError
from pie_control.gateway.ending import result_of
from pie_control.gateway.gateway import Gateway
from pie_control.gateway.refusal import Refused
from pie_control.gateway.request import ServedRequest
from pie_control.inferlets.events import Ended, Message
from pie_control.registry.entry import Entry
from pie_control.tenant_api import TenantApi

from ..attachments import Attachments
from ..launches import Launches
from .dialects import OpenAi, dialect_of, error_event

LEFT = "the client of the request that it served has left"
COMMENT = b": nothing new\n\n"
COMMENT_SECONDS = 15.0
"""Time without events after which a comment is sent, so that proxies keep the connection."""
CHUNK_BYTES = 64 << 10
"""A chunk ends with the event that reaches this size."""
JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"


class ServedResponse(Response):
    """Launches the inferlet when it is sent. If the client leaves, the inferlet ends at once."""

    def __init__(
        self,
        gateway: Gateway,
        request: ServedRequest,
        api: TenantApi,
        address: Address | None,
        attachments: Attachments,
        launches: Launches,
    ) -> None:
        super().__init__()
        self._gateway = gateway
        self._request = request
        self._api = api
        self._address = address
        self._attachments = attachments
        self._launches = launches
        self._news = asyncio.Event()
        self._dialect = dialect_of(request.route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.create_task(self._answer(send))
        leaving = asyncio.create_task(_client_leaves(receive))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.wait((answering, leaving))
        if answering.cancelled():
            return
        try:
            answering.result()
        except PieError as error:
            await self._dialect.answer(error)(scope, receive, send)

    async def _answer(self, send: Send) -> None:
        self._api.check_budget()
        with self._launches.launching(self._address):  # which counts it until it is answered
            async with self._gateway.line.place(self._api.standing):
                inferlet = await self._gateway.launch(self._request, self._api)
                await self._answer_of(inferlet, send)

    async def _answer_of(self, inferlet: Entry, send: Send) -> None:
        try:
            self._attachments.claim(inferlet.id, self)
            inferlet.outbox.attach(self._news.set)
            await (self._stream if self._request.stream else self._whole)(inferlet, send)
        finally:
            inferlet.outbox.detach()
            self._attachments.release(inferlet.id, self)
            if inferlet.ended is None:
                self._api.terminate(inferlet.id, LEFT)

    async def _whole(self, inferlet: Entry, send: Send) -> None:
        while not isinstance(event := await self._next(inferlet), Ended):
            pass
        body = result_of(event).encode()
        await self._start(send, inferlet, JSON, [(b"content-length", str(len(body)).encode())])
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, inferlet: Entry, send: Send) -> None:
        chunk, ended = await self._next_chunk(inferlet)
        if ended is not None and not chunk:
            result_of(ended)  # an error has its own status
        await self._start(send, inferlet, EVENTS, [(b"cache-control", b"no-store")])
        while ended is None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            try:
                async with asyncio.timeout(COMMENT_SECONDS):
                    chunk, ended = await self._next_chunk(inferlet)
            except TimeoutError:
                chunk = COMMENT
        await send({"type": "http.response.body", "body": chunk + _last_events(self._dialect, ended)})

    async def _next(self, inferlet: Entry) -> object:
        while (event := inferlet.outbox.take()) is None:
            self._news.clear()
            await self._news.wait()
        return event

    async def _next_chunk(self, inferlet: Entry) -> tuple[bytes, Ended | None]:
        """The next events, up to a size, and how the inferlet has ended if it has."""
        event, chunk = await self._next(inferlet), b""
        while event is not None:
            if isinstance(event, Ended):
                return chunk, event
            if isinstance(event, Message):
                chunk += self._dialect.event(event.text)
            event = inferlet.outbox.take() if len(chunk) < CHUNK_BYTES else None
        return (chunk, None) if chunk else await self._next_chunk(inferlet)

    async def _start(self, send: Send, inferlet: Entry, kind: str, headers: list[tuple[bytes, bytes]]) -> None:
        ids = [(b"x-request-id", self._request.id.encode()), (b"x-inferlet-id", inferlet.id.encode())]
        headers = [(b"content-type", kind.encode()), *headers, *ids]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _client_leaves(receive: Callable[[], Awaitable[object]]) -> None:
    while (await receive())["type"] != "http.disconnect":  # type: ignore[index]
        pass


def _last_events(dialect: OpenAi, ended: Ended) -> bytes:
    try:
        result_of(ended)
    except Refused as error:
        return error_event(dialect, error) + dialect.end
    return dialect.end
