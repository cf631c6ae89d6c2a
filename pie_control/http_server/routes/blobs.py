"""`/v1/blobs`: upload what inferlets get beside text."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request

from ..callers import FromTenant
from .failures import failures

BODY = {
    "requestBody": {
        "required": False,
        "description": "Any bytes, such as those of an image; none are a blob too.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@dataclass(frozen=True)
class BlobInfo:
    """An uploaded blob. `blob`: its content hash, for `launch`."""

    blob: str
    size: int


def blobs_router() -> APIRouter:
    """Routes over the blobs of a tenant."""
    router = APIRouter(prefix="/v1/blobs", tags=["blobs"])

    @router.post("", summary="Upload a blob", openapi_extra=BODY, responses=failures(413))
    async def upload(request: Request, caller: FromTenant) -> BlobInfo:
        """Keeps bytes for inferlets that are launched with them, for 10 minutes since they were used last, or as long
        as there is room. 413 `storage-full`: it is too large."""
        data = await request.body()
        return BlobInfo(await caller.api.upload_blob(data), len(data))

    return router
