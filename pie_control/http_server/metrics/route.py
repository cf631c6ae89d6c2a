"""`/metrics`: what was measured, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from pie_control.server_api import ServerApi

from ..callers import FromTenant
from ..routes.failures import failures


def metrics_router(api: ServerApi) -> APIRouter:
    """The route that Prometheus scrapes."""
    router = APIRouter(tags=["system"])

    answers = {200: {"content": {"text/plain": {}}}, **failures(404)}

    @router.get("/metrics", summary="Read metrics", response_class=Response, responses=answers)
    async def metrics(caller: FromTenant) -> Response:
        """What was measured, in the text format of Prometheus. Samples with another `tenant` are for who sees all. The
        server must be started with `--metrics`."""
        tenant = None if caller.sees_all else caller.account.standing.tenant.name
        return Response(api.metrics(tenant), media_type="text/plain; version=1.0.0; charset=utf-8")

    return router
