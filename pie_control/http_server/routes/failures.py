"""What routes answer beside what was asked for, for the OpenAPI description."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter
from starlette.responses import Response

from ..messages import encode


@dataclass(frozen=True)
class FailureBody:
    """`code`: for programs; docs/http-api.md lists them. `message`: for people. `type`: a class of errors; `param`: the
    field of the request that is wrong."""

    code: str | None
    message: str
    type: str
    param: str | None


@dataclass(frozen=True)
class Failure:
    """Every failure."""

    error: FailureBody


MEANINGS = {
    400: "`bad-request`: malformed, or what cannot be",
    401: "`unauthorized`: the server asks for a token, or knows none like this",
    403: "`forbidden`: a web page of another origin, or what the tenant or nobody may do here",
    404: "`unknown-name`: there is none; another tenant's does not exist either",
    408: "`bad-request`, `overloaded`: the request did not come, or its answer was not read, in time",
    409: "`conflict`",
    413: "`too-large`, `storage-full`",
    421: "`forbidden`: by this name of the server",
    429: "`too-many-requests`: what the tenant or client may have at a time; `rate-limited`: a budget is spent",
    422: "`bad-program`, `bad-adapter`: the message says what is wrong with it",
    500: "`internal`: a fault of the server; its log says more",
    503: "`overloaded`, `worker-unavailable`, `host-unavailable`: try again later",
}
REFERENCE = "#/components/schemas/{model}"
OF_ALL = (400, 401, 403, 408, 421, 500, 503)
"""What any request may come to."""


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these, or of all routes. They refer to the schema that
    `describe_as_sent` adds: given the class, FastAPI would make a schema for each status of each route, 0.2 s of each
    start."""
    content = {"application/json": {"schema": {"$ref": REFERENCE.format(model=Failure.__name__)}}}
    return {status: {"description": MEANINGS[status], "content": content} for status in statuses}


def describe_as_sent(app: FastAPI) -> None:
    """Adds the schema of failures to the description. Leaves out what FastAPI says of its own answer to malformed
    parameters, which is none of ours: they are answered with 400."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        schema = described()
        for operation in (each for path in schema["paths"].values() for each in path.values()):
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
        schemas = schema["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        failure = TypeAdapter(Failure).json_schema(ref_template=REFERENCE)
        schemas |= failure.pop("$defs") | {Failure.__name__: failure}
        schema["components"]["schemas"] = dict(sorted(schemas.items()))
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
    described_once = functools.cache(lambda: encode(app.openapi()))  # anybody may ask, again and again

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi_json() -> Response:
        return Response(described_once(), media_type="application/json")
