"""The HTTP API as one FastAPI application."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping

from fastapi import Depends, FastAPI, WebSocket
from fastapi.security import HTTPBearer

from pie_control.config import JSON, ServerConfig
from pie_control.gateway.gateway import Gateway
from pie_control.gateway.line import LineLimits, WaitingLine
from pie_control.gateway.programs import RoutePrograms
from pie_control.release import package_version
from pie_control.server_api import ServerApi

from .attachments import Attachments
from .callers import Callers, caller_of
from .dashboard.check import check_router
from .dashboard.pages import pages_router
from .dashboard.stream import dashboard_router
from .failures import add_handlers
from .guard import AllowedHosts, Guard, json_limit
from .launches import Launches
from .metrics.measured import MeasuredRequests
from .metrics.request_log import RequestLog
from .metrics.traced import TracedRequests
from .routes.adapters import adapters_router
from .routes.blobs import blobs_router
from .routes.failures import OF_ALL, describe_as_sent, failures
from .routes.inferlets import inferlets_router
from .routes.programs import programs_router
from .routes.system import health_router, metrics_router, system_router
from .served.models import models_router
from .served.response import begin_again
from .served.routes import served_router
from .served.stored import stored_router
from .session.session import Session

DESCRIPTION = """Upload small programs (*inferlets*) that run beside the model and drive generation themselves.

Every failure has one shape, `{"error": {"code": "...", "message": "...", "type": "...", "param": null}}`. The
connection for many inferlets is the WebSocket `/v1/session`; `docs/http-api.md` describes its messages."""

SPARE = 0.1
"""A further request is served while this part of the KV pages is left: those that are will need more than they have."""
TOKEN = Depends(HTTPBearer(auto_error=False, description="The token of a tenant."))
"""Makes `/docs` ask for a token, where the server does; the guard is what checks it."""


def create_app(api: ServerApi, config: ServerConfig, callers: Callers, programs: Mapping[str, bytes]) -> FastAPI:
    """The application over one server, which the caller starts and closes. `programs`: of the operator, by the names of
    those that they replace."""
    # FastAPI's own pages load scripts from elsewhere: `pages_router` has ours
    app = FastAPI(
        title="Pie",
        version=package_version(),
        description=DESCRIPTION,
        openapi_url=None,  # `describe_as_sent` serves it
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # `failures` says what a slash too many means
    )
    attachments, launches = Attachments(), Launches(config.max_inferlets_per_client)
    limits = LineLimits(config.max_serving, config.max_waiting, config.max_wait_seconds)
    line = WaitingLine(limits, time.monotonic, functools.partial(api.has_spare_pages, SPARE))
    gateway = Gateway(api, RoutePrograms(api, programs), line)
    app.state.begin_again = functools.partial(begin_again, gateway, callers, attachments, launches)
    app.add_middleware(
        Guard,
        hosts=AllowedHosts(config.host, config.allowed_hosts),
        callers=callers,
        max_program_bytes=config.max_program_bytes,
        max_blob_bytes=config.limits.max_blob_bytes,
        max_json_bytes=json_limit(config.limits.max_message_bytes),
    )
    if api.observer is not None:
        app.add_middleware(MeasuredRequests, requests=api.observer.http)
        api.observer.line = gateway.line.counts
    if config.traces:
        app.add_middleware(TracedRequests)
    if config.log_format == JSON:
        app.add_middleware(RequestLog)
    add_handlers(app)
    routers = (
        served_router(gateway, attachments, launches),  # the first that is looked at, since most requests are for it
        programs_router(),
        blobs_router(),
        inferlets_router(attachments, launches),
        adapters_router(api),
        stored_router(gateway),
        models_router(api, gateway),
        system_router(api),
        metrics_router(api),
        dashboard_router(api, gateway.line.tenants),
        check_router(),
    )
    for router in routers:
        app.include_router(router, dependencies=[TOKEN] if callers.ask else [], responses=failures(*OF_ALL))
    app.include_router(health_router(api, app.version), responses=failures(*OF_ALL))
    app.include_router(pages_router())
    describe_as_sent(app)

    @app.websocket("/v1/session")
    async def session(websocket: WebSocket) -> None:
        most = json_limit(config.limits.max_message_bytes)
        await Session(websocket, api, await caller_of(websocket), attachments, launches).run(most)

    return app
