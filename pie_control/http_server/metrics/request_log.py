"""Logs each HTTP request and session, where logs are JSON, and gives it an id."""

from __future__ import annotations

import logging
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pie_control.ids import uuid7
from pie_control.observation.logs import REQUEST

log = logging.getLogger("pie.requests")

HEADER = "x-request-id"
MOST_ID = 128
"""Characters of an id that a client or a proxy gives."""
LONGEST_PATH = 256


def request_id(headers: Headers) -> str:
    """The id of the request in whose task this is called: the one that it has in the logs, where there are such; else
    the one that its client has given it, or a new one."""
    if known := REQUEST.get():
        return known
    given = headers.get(HEADER, "")
    return given if 0 < len(given) <= MOST_ID and given.isprintable() and given.isascii() else uuid7().hex


class RequestLog:
    """ASGI middleware, the outermost. The answer has the id in the header `x-request-id`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request = request_id(Headers(scope=scope))
        REQUEST.set(request)  # of this task and those that it starts
        began, status = monotonic(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).setdefault(HEADER, request)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            caller = scope.get("state", {}).get("caller")
            about = {
                "request": request,
                "tenant": caller.account.standing.tenant.name if caller else None,
                "method": scope.get("method", "WEBSOCKET"),
                "path": scope["path"][:LONGEST_PATH],
                "status": status or None,
                "seconds": round(monotonic() - began, 6),
            }
            log.info("request", extra={"about": about})
