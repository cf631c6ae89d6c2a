"""Blobs: bytes that the client sends by name (`pie run --blob photo=cat.png`). They stay outside of the program unless
it reads them."""

from __future__ import annotations

from base64 import b64decode

from inferlet_sdk import bindings
from inferlet_sdk.errors import call
from inferlet_sdk.traits.arguments import LARGEST_U32, text, whole

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
    return _read(_blob(blob), 0, 0)[1]


def _read(blob: int, offset: int, length: int) -> tuple[bytes, int]:
    """At most `MOST_READ` bytes, and the size of the blob."""
    data, size = call(bindings.blobs.read_blob, blob, offset, min(length, MOST_READ))
    return b64decode(data), size


def read_blob(blob: int, offset: int = 0, length: int | None = None) -> bytes:
    """Bytes of a blob from `offset` on: `length` of them, or all."""
    handle, offset = _blob(blob), whole(offset, "offset")
    wanted = LARGEST_U32 if length is None else whole(length, "length")
    first, size = _read(handle, offset, wanted)
    end = min(size, offset + wanted)
    return b"".join([first, *(_read(handle, at, end - at)[0] for at in range(offset + MOST_READ, end, MOST_READ))])


def close_blob(blob: int) -> None:
    """Closes a handle."""
    call(bindings.core.drop, _blob(blob))
