"""`/v1/programs/check`: mistakes in a program, without running it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from pie_control.dashboard.checking import Checker

from ..callers import FromTenant
from ..routes.failures import failures

BODY = {
    "requestBody": {
        "required": True,
        "description": "Python source in UTF-8.",
        "content": {"text/x-python": {"schema": {}, "example": 'async def main(args):\n    return "hello"\n'}},
    }
}


def check_router() -> APIRouter:
    """The route of the playground's check."""
    router = APIRouter(tags=["programs"])
    checker = Checker()

    @router.post("/v1/programs/check", summary="Check a program", openapi_extra=BODY, responses=failures(413, 422))
    async def check(request: Request, caller: FromTenant) -> list[dict[str, Any]]:
        """What `pie check` finds in a program of one file: a list of `{file, line, column, message, advice, source}`.
        It is neither run nor kept. 422 `bad-program`: it cannot be checked within 20 seconds."""
        return await checker.check(await request.body(), caller.account.standing.tenant.name)

    return router
