"""JSON bodies of requests. msgspec decodes them, which stops at the first fault: a body may be large, and a list of all
of its faults far larger."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

from pie_control.errors import BadRequest
from pie_control.registry.blobs import MOST_BLOBS, MOST_NAME
from pie_control.texts import json_fault

T = TypeVar("T", bound=msgspec.Struct)

BlobName = Annotated[str, Meta(min_length=1, max_length=MOST_NAME)]
BlobHashes = Annotated[
    dict[BlobName, str],
    Meta(max_length=MOST_BLOBS, description="Uploaded blobs: content hashes, by the names to open them."),
]


async def read_body(request: Request, kind: type[T]) -> T:
    """The body as a `kind`; raises BadRequest."""
    body = await request.body()
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the request is malformed: {json_fault(body, error)}") from None


def describe_body(kind: type[msgspec.Struct], example: object) -> dict[str, Any]:
    """The request body for the OpenAPI description."""
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}
