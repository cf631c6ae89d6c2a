"""The HTTP API as one FastAPI application."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI, WebSocket
from starlette.responses import Response

from pie_control.server_api import ServerApi

from . import failures
from .attachments import Attachments
from .guard import Guard
from .inferlets import inferlets_router
from .messages import encode
from .programs import programs_router
from .session import Session
from .views import ModelInfo, describe_model

DESCRIPTION = """Upload small programs (*inferlets*) that run beside the model and drive generation themselves.

Every failure has one shape, `{"error": {"code": "...", "message": "..."}}`. The connection for many inferlets is the
WebSocket `/v1/session`; `docs/http-api.md` describes its messages."""


def package_version() -> str:
    """Version of the installed package."""
    try:
        return version("pie-serving")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"


def create_app(api: ServerApi, max_body_bytes: int = 64 << 20) -> FastAPI:
    """The application over one runtime, which the caller starts and closes."""
    app = FastAPI(title="Pie", version=package_version(), description=DESCRIPTION)
    attachments = Attachments()
    app.add_middleware(Guard, max_body_bytes=max_body_bytes)
    failures.add_handlers(app)
    app.include_router(programs_router(api))
    app.include_router(inferlets_router(api, attachments))
    _add_system_routes(app, api)

    @app.websocket("/v1/session")
    async def session(websocket: WebSocket) -> None:
        await Session(websocket, api, attachments).run()

    return app


def _add_system_routes(app: FastAPI, api: ServerApi) -> None:
    @app.get("/v1/models", tags=["system"], summary="List models")
    async def models() -> list[ModelInfo]:
        """The models that inferlets can use, and the traits that each implements."""
        return [describe_model(model) for model in api.models()]

    @app.get("/v1/statistics", tags=["system"], summary="Read statistics", response_class=Response)
    async def statistics() -> Response:
        """Numbers on inferlets, waves, batches and pools, as nested JSON objects."""
        return Response(encode(api.statistics()), media_type="application/json")

    @app.get("/v1/health", tags=["system"], summary="Check health")
    async def health() -> dict[str, str]:
        """Answers when the server takes requests."""
        return {"status": "ok", "server": "pie", "version": app.version}
