"""JSON bodies of requests. msgspec decodes them, which stops at the first fault: a body may be large, and a list of all
of its faults far larger."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from pie_control.errors import BadRequest

T = TypeVar("T", bound=msgspec.Struct)


async def read_body(request: Request, kind: type[T]) -> T:
    """The body as a `kind`; raises BadRequest."""
    body = await request.body()
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"the request is malformed: {error}") from None


def describe_body(kind: type[msgspec.Struct], example: object) -> dict[str, Any]:
    """The request body for the OpenAPI description."""
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}
