"""Blobs: bytes that the client sends by name (`pie run --blob photo=cat.png`). They stay outside of the program unless
it reads them."""

from __future__ import annotations

from base64 import b64decode

from inferlet_sdk import bindings
from inferlet_sdk.errors import call
from inferlet_sdk.traits.arguments import text, whole

__all__ = [
    "blob_names",
    "blob_size",
    "close_blob",
    "open_blob",
    "read_blob",
]

MOST_READ = 256 << 10
"""Bytes that one call of the host reads."""


def blob_names() -> list[str]:
    """Names of the blobs that there are."""
    return list(call(bindings.blobs.blob_names))


def open_blob(name: str) -> int:
    """A handle of a blob; raises NotFound, with the names that there are. The blob is kept until its last handle is
    closed."""
    return int(call(bindings.blobs.open_blob, text(name, "name")))


def _blob(blob: object) -> int:
    return whole(blob, "blob", wanted="a handle of a blob, from `open_blob`")


def blob_size(blob: int) -> int:
    """Its size in bytes."""
    return int(call(bindings.blobs.blob_size, _blob(blob)))


def read_blob(blob: int, offset: int = 0, length: int | None = None) -> bytes:
    """Bytes of a blob from `offset` on: `length` of them, or all."""
    handle, offset = _blob(blob), whole(offset, "offset")
    wanted = None if length is None else whole(length, "length")
    end = blob_size(handle)
    if wanted is not None:
        end = min(end, offset + wanted)
    parts = (
        b64decode(call(bindings.blobs.read_blob, handle, start, min(end - start, MOST_READ)))
        for start in range(offset, end, MOST_READ)
    )
    return b"".join(parts)


def close_blob(blob: int) -> None:
    """Closes a handle."""
    call(bindings.core.drop, _blob(blob))
