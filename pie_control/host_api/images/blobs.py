"""blobs.wit: bytes from clients and servers. They stay outside of the sandbox unless the program reads them."""

from __future__ import annotations

import base64

from ...errors import InvalidArgument
from ...inferlets.blobs import Blob
from ..guest import Guest
from ..limits.bounds import MOST_READ


def blob_names(guest: Guest) -> list[str]:
    return guest.inferlet.blobs.names


def open_blob(guest: Guest, name: str) -> int:
    return guest.add_blob(guest.inferlet.blobs.open(name))


def read_blob(guest: Guest, blob: int, offset: int, length: int) -> tuple[str, int]:
    data = guest.handle(blob, Blob).data
    if length > MOST_READ:
        raise InvalidArgument(f"{length} bytes are more than one call reads ({MOST_READ}): read in pieces")
    return base64.b64encode(data[offset : offset + length]).decode(), len(data)
