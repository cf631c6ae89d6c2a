"""`/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/messages`: requests that programs answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from pie_control.gateway.gateway import Gateway
from pie_control.gateway.programs import ROUTES
from pie_control.gateway.refusal import Refused
from pie_control.gateway.request import read_request
from pie_control.ids import uuid7

from ..attachments import Attachments
from ..callers import FromTenant, caller_of
from ..launches import Launches
from ..metrics.request_log import request_id
from ..routes.failures import failures
from .dialects import dialect_of
from .response import ServedResponse

HELD = {"model": {"type": ["string", "null"]}, "stream": {"type": ["boolean", "null"]}}
BODY = {
    "requestBody": {
        "required": True,
        "description": "`model`, `stream` and `priority` are known here; the rest is for the program to say.",
        "content": {"application/json": {"schema": {"type": "object", "properties": HELD}}},
    }
}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "What the program answers.", "content": {"application/json": {}, "text/event-stream": {}}}
}
LARGE = 64 << 10
"""Bytes of a body that is read beside the event loop."""
STATUSES = (404, 409, 413, 422, 429)


class ServedRoute(APIRoute):
    """Calls its function at once: FastAPI would look for parameters and dependencies at each request, for a quarter of
    what a request costs here. It still describes the route."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(request: Request) -> Response:
            answer: Response = await self.endpoint(request, await caller_of(request))
            return answer

        return handle


def served_router(gateway: Gateway, attachments: Attachments, launches: Launches) -> APIRouter:
    """A route for each of ROUTES."""
    router = APIRouter(tags=["served by programs"], route_class=ServedRoute)
    for path, program in ROUTES.items():
        _add(router, path, program, gateway, attachments, launches)
    return router


def _add(
    router: APIRouter, path: str, program: str, gateway: Gateway, attachments: Attachments, launches: Launches
) -> None:
    @router.post(
        path,
        summary=f"Served by the program {program}",
        operation_id=path.removeprefix("/v1/").strip("/").replace("/", "_"),
        openapi_extra=BODY,
        response_class=Response,
        responses=ANSWERS | failures(*STATUSES),
    )
    async def serve(request: Request, caller: FromTenant) -> Response:
        """Runs a program for the request, as docs/serving-programs.md says. With `stream`, the answer is server-sent
        events. 404 `model_not_found`: no such model, adapter or program. The program ends when the client leaves."""
        try:
            told = path, request_id(request.headers), await request.body(), uuid7().hex
            served = read_request(*told) if len(told[2]) < LARGE else await asyncio.to_thread(read_request, *told)
        except Refused as error:
            return dialect_of(path).answer(error)
        return ServedResponse(gateway, served, caller.api, request.client, attachments, launches)
