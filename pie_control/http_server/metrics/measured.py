"""Measures HTTP requests. Sessions and probes are left out."""

from __future__ import annotations

from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pie_control.observation.http_requests import HttpRequests

from ..failures import LEFT

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NO_ROUTE = "none"
PROBES = frozenset({"/metrics", "/v1/health", "/health", "/ready"})


class MeasuredRequests:
    """ASGI middleware, the outermost: it sees refusals, too."""

    def __init__(self, app: ASGIApp, requests: HttpRequests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        began, status = monotonic(), LEFT

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            status = 500 if status == LEFT else status
            raise
        finally:
            handler = getattr(scope.get("route"), "path", NO_ROUTE)
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._requests.ended(handler, method, status, monotonic() - began)
