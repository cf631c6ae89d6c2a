"""Answers as they go out: a body, or events."""

from __future__ import annotations

import asyncio

from starlette.types import Send

from pie_control.gateway.refusal import Refused
from pie_control.gateway.stored.running import Running

from ..routes.event_stream import COMMENT, COMMENT_SECONDS
from .dialects import OpenAi, error_event

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"

Headers = list[tuple[bytes, bytes]]


async def send_body(body: str, headers: Headers, send: Send) -> None:
    """A whole answer, JSON."""
    data = body.encode()
    told = [(b"content-type", JSON.encode()), (b"content-length", str(len(data)).encode()), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": told})
    await send({"type": "http.response.body", "body": data})


async def start_events(headers: Headers, send: Send) -> None:
    """The beginning of a stream."""
    told = [(b"content-type", EVENTS.encode()), (b"cache-control", b"no-store"), *headers]
    await send({"type": "http.response.start", "status": 200, "headers": told})


async def send_events(running: Running, number: int, dialect: OpenAi, headers: Headers, send: Send) -> None:
    """The events of a stored answer from this number on, each with its number as `id`, until it is over. Raises its
    error if there is none of them, and Refused if they are not kept any more."""
    events = await running.after(number)
    if not events and running.error is not None:
        raise running.error
    await start_events(headers, send)
    while events:
        chunk = b"".join(b"id: %d\n" % place + dialect.event(one, place) for place, one in enumerate(events, number))
        number += len(events)
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await asyncio.sleep(0)  # sending to a fast client never waits
        try:
            events = await _next_events(running, number, send)
        except Refused as error:  # it reads too slowly
            chunk, events = error_event(dialect, error), []
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": dialect.end})


async def _next_events(running: Running, number: int, send: Send) -> list[str]:
    while True:
        try:
            async with asyncio.timeout(COMMENT_SECONDS):
                return await running.after(number)
        except TimeoutError:
            await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
