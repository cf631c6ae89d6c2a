"""Errors as clients see them: one JSON shape over HTTP, `{"error": {"code", "message", "type", "param"}}`, of which
the session leaves out what says nothing more."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from pie_control.errors import CallError, ClientError, PieError
from pie_control.gateway.refusal import Refused

from .messages import ErrorBody, encode

log = logging.getLogger(__name__)

HTTP_CODES = {307: "not-found", 403: "forbidden", 404: "not-found", 405: "method-not-allowed", 413: "too-large"}
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""Classes of errors as OpenAI's API calls them; of others, `invalid_request_error` or `server_error`."""
ANTHROPIC_TYPES = {404: "not_found_error", 413: "request_too_large", 500: "api_error", 503: "overloaded_error"}
"""The types of Anthropic's API where they differ from those of OpenAI's."""
MESSAGES = "/v1/messages"
"""Where its routes begin."""
NOT_SERVED = ("/v1/responses/compact", "/v1/responses/input_tokens")
"""Routes of OpenAI's API that look like those of a response."""
METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
MOST_PATH = 100
"""Characters of a path that an answer repeats."""
LEFT = 499
"""The status, which nobody gets, of a request whose client has left before its answer: nginx calls it so in logs."""
RETRIED = (429, 503)
"""A client may try again after a while."""
PHRASES = {
    400: "Bad Request",
    401: "Unauthorized",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def error_code(error: PieError) -> str:
    """The code of an error: `UnknownName` is `unknown-name`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()


def error_body(error: Exception) -> ErrorBody:
    """An error as the client sees it. One that is not a PieError is our fault: only the log has details."""
    if isinstance(error, Refused):
        return ErrorBody(error.code, str(error), error.type, error.param)
    if isinstance(error, PieError):
        return ErrorBody(error_code(error), str(error))
    log.error("a request failed", exc_info=error)
    return ErrorBody("internal", "the server failed on this request; its log says why")


def status_of(error: Exception) -> int:
    """The HTTP status of an error."""
    if isinstance(error, CallError):
        return ClientError.status
    return int(getattr(error, "status", 500)) if isinstance(error, PieError) else 500


class FailureResponse(JSONResponse):
    """An error in the form of the API that its route belongs to."""

    def __init__(self, status: int, error: dict[str, str | None], headers: dict[str, str] | None) -> None:
        super().__init__({"error": error}, status, headers)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path", "").startswith(MESSAGES):
            self.body = self.render(anthropic(self.status_code, self._error))
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def response(status: int, body: ErrorBody, retry_after: int = 1) -> FailureResponse:
    """The HTTP form of an error."""
    headers = {"retry-after": str(retry_after)} if status in RETRIED else None
    return FailureResponse(status, told(status, body), headers)


def anthropic(status: int, error: dict[str, str | None]) -> dict[str, Any]:
    """What `told` says, in the form of Anthropic's API."""
    return {"type": "error", "error": {**error, "type": ANTHROPIC_TYPES.get(status, error["type"])}}


def answer_of(error: Exception) -> JSONResponse:
    """The answer that an error is."""
    return response(status_of(error), error_body(error), getattr(error, "retry_after", 1))


def told(status: int, body: ErrorBody) -> dict[str, str | None]:
    """What an answer of this status says of an error."""
    kind = body.type or TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"code": body.code, "message": body.message, "type": kind, "param": body.param}


def _base_url(app: FastAPI, scope: Scope) -> str:
    """What is wrong with the base URL of a client, if its path would be a route by another one; else nothing."""
    path = scope["path"]
    if _methods(app, {**scope, "path": f"/v1{path}"}):
        return "the base URL of a client of OpenAI's API ends in /v1"
    if path.startswith("/v1/") and _methods(app, {**scope, "path": path.removeprefix("/v1")}):
        return "the base URL of a client of Anthropic's API has no /v1 at its end"
    return ""


def _methods(app: FastAPI, scope: Scope) -> list[str]:
    """All that the path of a request allows, by the description: a path in full comes before one with parameters.
    Starlette names those of the first of its routes only."""
    routes = [route for route in _single(app.routes) if route.matches(scope)[0] is not Match.NONE]
    in_full = [route for route in routes if "{" not in route.path]
    asked: list[Scope] = [{**scope, "method": method} for method in METHODS]
    return [one["method"] for one in asked if any(each.matches(one)[0] is Match.FULL for each in in_full or routes)]


def _single(routes: Iterable[Any]) -> Iterator[Any]:
    """The routes of routers, one by one, as FastAPI keeps them within each other."""
    for route in routes:
        router = getattr(route, "original_router", None)
        yield from [route] if router is None else _single(router.routes)


def add_handlers(app: FastAPI) -> None:
    """Answers every failure of `app` in this shape."""

    async def on_failure(_: Request, error: Exception) -> JSONResponse:
        return answer_of(error)

    async def on_malformed(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        field = str(error.errors()[0]["loc"][-1])
        parts = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return response(400, ErrorBody("bad-request", f"the request is malformed: {'; '.join(parts)}", param=field))

    async def on_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        path, status, told, headers = request.url.path[:MOST_PATH], error.status_code, error.detail, {}
        if path in NOT_SERVED:
            status, told = 404, f"{path} is not served here: /docs shows what is"
        elif status == 405:
            headers = {"allow": ", ".join(_methods(app, request.scope))}
            told = f"{path} takes {headers['allow']}, not {request.method}"
        elif status == 404 and path.endswith("/") and _methods(app, {**request.scope, "path": path[:-1]}):
            told = f"there is no {path} here, but {path[:-1]}"
            status, headers = 307, {"location": str(request.url.replace(scheme="", netloc="", path=path[:-1]))}
        elif status == 404:
            told = f"there is no {path} here: {_base_url(app, request.scope) or '/docs shows what there is'}"
        answer = response(status, ErrorBody(HTTP_CODES.get(status, "bad-request"), told))
        answer.headers.update(headers)
        return answer

    async def on_hang_up(request: Request, _: Exception) -> Response:
        log.debug("a client hung up within the body of %s %s", request.method, request.url.path)
        return Response(status_code=LEFT)  # which nobody gets

    app.add_exception_handler(ClientDisconnect, on_hang_up)
    app.add_exception_handler(PieError, on_failure)
    app.add_exception_handler(RequestValidationError, on_malformed)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_failure)


def last_error(status: int, code: str, message: str, path: str) -> bytes:
    """The JSON of the error with which a connection ends. `path`: of the request, if its head has come."""
    error = told(status, ErrorBody(code, message))
    return encode(anthropic(status, error) if path.startswith(MESSAGES) else {"error": error})


def last_answer(status: int, code: str, message: str, path: str) -> bytes:
    """The answer with which a connection ends."""
    body = last_error(status, code, message, path)
    head = (
        f"HTTP/1.1 {status} {PHRASES[status]}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"{'retry-after: 1' + chr(13) + chr(10) if status in RETRIED else ''}connection: close\r\n\r\n"
    )
    return head.encode() + body
