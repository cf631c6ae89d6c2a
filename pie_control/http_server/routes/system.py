"""`/v1/statistics`, `/v1/health`, `/health`, `/ready`: the server itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from pie_control.durable.accounts.audit import AuditRecord
from pie_control.durable.accounts.usage import MOST_DAYS, UsageRecord
from pie_control.errors import WorkerUnavailable
from pie_control.server_api import ServerApi

from ..callers import FromTenant
from ..messages import encode
from ..views import encoded_list
from .failures import failures


@dataclass(frozen=True)
class UsageList:
    """What was used."""

    data: list[UsageRecord]


MOST_TOLD = 10_000
"""Rows of one answer."""


@dataclass(frozen=True)
class AuditList:
    """What was done."""

    data: list[AuditRecord]


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


def system_router(api: ServerApi) -> APIRouter:
    """Routes that describe the server."""
    router = APIRouter(prefix="/v1", tags=["system"])

    @router.get("/statistics", summary="Read statistics", response_class=Response)
    async def statistics(caller: FromTenant) -> Response:
        """Numbers on inferlets, waves, batches and pools of the whole server, as nested JSON objects. For a key that
        may not `admin`: on its tenant's inferlets, those that run and those that ended lately, and on its budgets.
        `keys`: what the inferlets of each key of its tenant hold now, or of all tenants for who sees these."""
        return Response(encode(caller.statistics(api)), media_type="application/json")

    @router.get("/usage", summary="Read what was used", response_class=Response, responses={200: {"model": UsageList}})
    async def usage(
        caller: FromTenant,
        days: Annotated[int, Query(ge=1, le=MOST_DAYS, description="The last ones, today included.")] = 30,
    ) -> Response:
        """What each key has used, day by day (UTC), oldest first: of the own tenant, or of all. `key`: its
        id, or empty. A server without a state knows of today, since it was started."""
        tenant = None if caller.sees_all else caller.account.standing.tenant.name
        return await _data(api.bills.usage(days, tenant))

    @router.get(
        "/audit",
        summary="Read who did what",
        response_class=Response,
        responses={200: {"model": AuditList}, **failures(404)},
    )
    async def audit(
        caller: FromTenant,
        most: Annotated[int, Query(ge=1, le=MOST_TOLD, description="The last ones.")] = 1000,
    ) -> Response:
        """Keys made and revoked, programs uploaded and deleted, launches by keys, adapters, requests that need `admin`,
        refusals, restores of the state: oldest first, the same by the same within an hour once. 404 `unknown-name`: the
        server has no state."""
        caller.check_sees_all()
        return await _data(await asyncio.to_thread(api.read_audit, most))

    return router


async def _data(records: Iterable[object]) -> Response:
    return Response(b'{"data":%b}' % await encoded_list(records), media_type="application/json")


def health_router(api: ServerApi, version: str) -> APIRouter:
    """The routes that need no token."""
    router = APIRouter(tags=["system"])

    @router.head("/health", include_in_schema=False)
    @router.get("/health", summary="See whether the server is alive")
    async def alive() -> dict[str, str]:
        """Answers as long as the server does, whatever its workers do."""
        return {"status": "ok"}

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready", summary="See whether the server can take requests")
    async def ready() -> dict[str, str]:
        """503 `worker-unavailable` while no worker has loaded a model, or no host runs inferlets."""
        if not api.is_ready:
            raise WorkerUnavailable("no worker or no host serves now: try again later")
        return {"status": "ready"}

    @router.head("/v1/health", include_in_schema=False)
    @router.get("/v1/health", summary="Check health")
    async def health(request: Request) -> dict[str, str | list[str]]:
        """Answers when the server accepts requests. `outages` has a line for each worker that does not serve, for those
        who may use the server."""
        outages = list(api.outages())
        status, told = "degraded" if outages else "ok", outages if request.state.caller is not None else []
        return {"status": status, "server": "pie", "version": version, "outages": told}

    return router
