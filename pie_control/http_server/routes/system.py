"""`/v1/models`, `/v1/statistics`, `/v1/health`: the server itself."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from pie_control.server_api import ServerApi

from ..messages import encode
from ..views import ModelInfo, describe_model


def system_router(api: ServerApi) -> APIRouter:
    """Routes that describe the server."""
    router = APIRouter(prefix="/v1", tags=["system"])

    @router.get("/models", summary="List models")
    async def models() -> list[ModelInfo]:
        """The models that inferlets can use, and the traits that each implements."""
        return [describe_model(model) for model in api.models()]

    @router.get("/statistics", summary="Read statistics", response_class=Response)
    async def statistics() -> Response:
        """Numbers on inferlets, waves, batches and pools, as nested JSON objects."""
        return Response(encode(api.statistics()), media_type="application/json")

    return router


def health_router(api: ServerApi, version: str) -> APIRouter:
    """The route that needs no token."""
    router = APIRouter(prefix="/v1", tags=["system"])

    @router.get("/health", summary="Check health")
    async def health(request: Request) -> dict[str, str | list[str]]:
        """Answers when the server accepts requests. `outages` has a line for each worker that does not serve, for those
        who may use the server."""
        outages = list(api.outages())
        status, told = "degraded" if outages else "ok", outages if request.state.caller is not None else []
        return {"status": status, "server": "pie", "version": version, "outages": told}

    return router
