"""`/v1/models`: what the `model` of a request may be, in the forms of OpenAI and Anthropic together."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, HTTPException

from pie_control.gateway.gateway import Gateway
from pie_control.server_api import ServerApi

from ..callers import FromTenant
from ..routes.failures import failures
from ..views import describe_model

OWNER = "pie"


def models_router(api: ServerApi, gateway: Gateway) -> APIRouter:
    """Routes over the models and their adapters."""
    router = APIRouter(prefix="/v1/models", tags=["system"])
    created = int(time.time())
    started = datetime.fromtimestamp(created, UTC)
    same = {"object": "model", "created": created, "owned_by": OWNER}
    same |= {"type": "model", "created_at": started, "lifecycle": "active"}

    def describe(id: str, model: str, adapter: str) -> dict[str, Any]:
        own = next(describe_model(one) for one in api.models() if one.name == model)
        del own["name"]
        return {"id": id, "display_name": id, **same, "adapter": adapter or None, **own}

    @router.get("", summary="List models")
    async def models() -> dict[str, Any]:
        """The models, and for each of its adapters MODEL/ADAPTER: {id, object, created, owned_by}, what clients of
        Anthropic's API want beside, and what inferlets can do with them: `traits`, sizes in bytes, pages, tokens.
        `created`: when the server started."""
        names = (
            (f"{model}/{one}" if one else model, model, one)
            for model, own in gateway.models().items()
            for one in ("", *own)
        )
        data = [describe(*name) for name in names]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}
        return {"object": "list", "data": data, **ends}

    @router.get("/{model:path}", summary="Look at a model", responses=failures(404))
    async def model(model: str, caller: FromTenant) -> dict[str, Any]:
        """What a request may name: a model, MODEL/ADAPTER, or one of both with +PROGRAM. 404 `model_not_found`."""
        if not model:
            raise HTTPException(404)
        target = gateway.find(model, caller.api)
        return describe(model, target.model, target.adapter)

    return router
