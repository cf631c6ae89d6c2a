"""`/v1/dashboard`: what the dashboard shows, as it changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from pie_control.dashboard.viewers import Line, Viewer
from pie_control.server_api import ServerApi

from ..callers import FromTenant
from ..messages import encode
from ..routes.failures import failures

LOOK_SECONDS = 0.25
"""Between two looks. A client that reads slowly gets fewer, not more at once."""


class _Looks(StreamingResponse):
    """Looks for as long as somebody reads."""

    def __init__(self, api: ServerApi, line: Line, tenant: str | None, *, later: bool) -> None:
        """Raises TooManyRequests."""
        self._api = api
        self._viewer = contextlib.ExitStack()
        viewer = self._viewer.enter_context(api.dashboard.viewer(tenant, line, later=later))
        super().__init__(self._look(viewer), headers={"cache-control": "no-store"}, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._viewer:
            await super().__call__(scope, receive, send)

    async def _look(self, viewer: Viewer) -> AsyncIterator[bytes]:
        while not self._api.is_closed:
            yield b"data: " + encode(viewer.look()) + b"\n\n"
            await asyncio.sleep(LOOK_SECONDS)


def dashboard_router(api: ServerApi, line: Line) -> APIRouter:
    """The route of the dashboard's news. `line`: who waits before launches."""
    router = APIRouter(tags=["system"])

    @router.get("/v1/dashboard", summary="Watch the server", response_class=StreamingResponse, responses=failures(429))
    async def dashboard(
        caller: FromTenant,
        launched: Annotated[
            Literal["ever", "later"], Query(description="`later`: only your inferlets that are launched from now on.")
        ] = "ever",
    ) -> StreamingResponse:
        """Server-sent events without a name, four a second, until the client leaves: first all that there is, then what
        has changed. At most 1,000 inferlets are shown. A tenant sees its own; those of all tenants, queues and hosts
        are for keys that may `admin`, of a tenant with `may_see_all`, and for servers without keys and tenants."""
        later, tenant = launched == "later", caller.account.standing.tenant.name
        return _Looks(api, line, None if caller.sees_all and not later else tenant, later=later)

    return router
