"""Keeps the header `traceparent` of requests and sessions for what they launch."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pie_control.services.http.trace_context import HEADER, TRACEPARENT, checked


class TracedRequests:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            TRACEPARENT.set(checked(Headers(scope=scope).get(HEADER, "")))  # of this task and those that it starts
        await self._app(scope, receive, send)
