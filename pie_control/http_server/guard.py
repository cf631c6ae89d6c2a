"""Checks every request first: limits the body's size, and refuses requests from foreign web pages.

The server has no accounts: anyone who reaches its port may use it. A browser on the same machine can reach a loopback
port on behalf of any page that it shows. Such a request carries the page's `Origin`; a foreign origin is refused.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .failures import response
from .messages import ErrorBody


class Guard:
    """ASGI middleware. The body of a request may have at most `max_body_bytes` bytes."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._limit = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif not _same_origin(Headers(scope=scope)):
            await _refuse_origin(scope, receive, send)
        else:
            await self._app(scope, self._bounded(receive), send)

    def _bounded(self, receive: Receive) -> Receive:
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._limit:
                    raise HTTPException(413, f"the body has more than {self._limit} bytes (see --max-program-bytes)")
            return message

        return bounded


def _same_origin(headers: Headers) -> bool:
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


async def _refuse_origin(scope: Scope, receive: Receive, send: Send) -> None:
    refusal = ErrorBody("forbidden", "requests from web pages of another origin are refused")
    await response(403, refusal)(scope, receive, send)
