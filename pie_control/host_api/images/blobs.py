"""blobs.wit: what the client has sent beside text. Bytes stay outside of the sandbox unless the program reads them."""

from __future__ import annotations

import base64

from ...errors import InvalidArgument
from ...inferlets.blobs import Blob
from ..guest import Guest

MOST_READ = 256 << 10
"""Bytes that one call reads."""


def blob_names(guest: Guest) -> list[str]:
    return guest.inferlet.blobs.names


def open_blob(guest: Guest, name: str) -> int:
    blobs = guest.inferlet.blobs
    blob = blobs.open(name)
    try:
        return guest.add_handle(blob)
    except BaseException:
        blobs.close(blob)
        raise


def blob_size(guest: Guest, blob: int) -> int:
    return len(guest.handle(blob, Blob).data)


def read_blob(guest: Guest, blob: int, offset: int, length: int) -> str:
    data = guest.handle(blob, Blob).data
    if length > MOST_READ:
        raise InvalidArgument(f"{length} bytes are more than one call reads ({MOST_READ}): read in pieces")
    return base64.b64encode(data[offset : offset + length]).decode()


def close_blob(guest: Guest, blob: int) -> None:
    found = guest.handle(blob, Blob)
    guest.drop_handle(blob, Blob)
    guest.inferlet.blobs.close(found)
