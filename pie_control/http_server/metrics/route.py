"""`/metrics`: what was measured, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from pie_control.server_api import ServerApi

from ..routes.failures import failures


def metrics_router(api: ServerApi) -> APIRouter:
    """The route that Prometheus scrapes."""
    router = APIRouter(tags=["system"])

    answers = {200: {"content": {"text/plain": {}}}, **failures(404)}

    @router.get("/metrics", summary="Read metrics", response_class=Response, responses=answers)
    async def metrics() -> Response:
        """What was measured, in the text format of Prometheus. The server must be started with `--metrics`."""
        return Response(api.metrics(), media_type="text/plain; version=1.0.0; charset=utf-8")

    return router
