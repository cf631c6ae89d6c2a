"""`/v1/adapters`: load LoRA adapters, list and drop them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from msgspec import Meta

from pie_control.engine.adapters import AdapterInfo
from pie_control.server_api import ServerApi

from ..callers import FromTenant
from .bodies import describe_body, read_body
from .failures import failures


class AdapterBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to load."""

    name: Annotated[str, Meta(description="What inferlets call it: letters, digits and . _ -")]
    folder: Annotated[str, Meta(description="On the server, inside its --adapter-dir, as PEFT saves it.")]
    model: Annotated[str, Meta(description="The model; by default the first.")] = ""


BODY = describe_body(AdapterBody, {"name": "poet", "folder": "poet-v2"})


def adapters_router(api: ServerApi) -> APIRouter:
    """Routes over the adapters of the server."""
    router = APIRouter(prefix="/v1/adapters", tags=["adapters"])

    @router.get("", summary="List adapters")
    async def list_adapters() -> list[AdapterInfo]:
        """The LoRA adapters that inferlets can use."""
        return list(api.adapters.all())

    @router.post(
        "", status_code=201, summary="Load an adapter", openapi_extra=BODY, responses=failures(404, 409, 413, 422)
    )
    async def load(request: Request, caller: FromTenant) -> AdapterInfo:
        """Loads an adapter on all workers of a model. 403 `forbidden`: the tenant may not load adapters, or nobody may,
        as the server has no folder for them. 404 `unknown-name`: it has no such model, or folder. 409 `conflict`: the
        name is taken. 422 `bad-adapter` says what is wrong with its files, or that there is no room."""
        caller.check_may_load_adapters()
        body = await read_body(request, AdapterBody)
        caller.api.note("load an adapter", body.name)
        return await api.adapters.load(body.name, body.folder, body.model)

    @router.delete("/{name}", summary="Drop an adapter", responses=failures(404))
    async def drop(
        name: str, caller: FromTenant, model: Annotated[str, Query(description="The model; by default the first.")] = ""
    ) -> AdapterInfo:
        """Forgets an adapter. Calls that name it are refused from now on, and what is under way with it fails; other
        work goes on. 404 `unknown-name` if there is none."""
        caller.check_may_load_adapters()
        caller.api.note("drop an adapter", name)
        return api.adapters.drop(name, model)

    return router
