"""blobs.wit: bytes from clients and servers. They stay outside of the sandbox unless the program reads them."""

from __future__ import annotations

import base64
from typing import Any

from ...errors import InvalidArgument
from ...inferlets.blobs import Blob
from ...inferlets.relations.mail import Letter
from ..guest import Guest
from ..suspending import suspending, when_done

MOST_READ = 256 << 10
"""Bytes that one call reads."""


def blob_names(guest: Guest) -> list[str]:
    return guest.inferlet.blobs.names


def open_blob(guest: Guest, name: str) -> int:
    return _add(guest, guest.inferlet.blobs.open(name))


def blob_size(guest: Guest, blob: int) -> int:
    return len(guest.handle(blob, Blob).data)


def read_blob(guest: Guest, blob: int, offset: int, length: int) -> str:
    data = guest.handle(blob, Blob).data
    if length > MOST_READ:
        raise InvalidArgument(f"{length} bytes are more than one call reads ({MOST_READ}): read in pieces")
    return base64.b64encode(data[offset : offset + length]).decode()


def _take_mail(guest: Guest, future: int) -> tuple[str, list[tuple[str, int]]]:
    letter: Letter = guest.futures.take(future, Letter)
    assert letter.message is not None, "the mail of a client ends with the inferlet"
    blobs, handles = guest.inferlet.blobs, list[tuple[str, int]]()
    try:
        for name, data in letter.message.blobs.items():
            blobs.reserve(len(data))
            handles.append((name, _add(guest, blobs.adopt(data))))
    except BaseException:
        for _, handle in handles:
            guest.drop_handle(handle)
        letter.not_taken()
        raise
    return letter.message.text, handles


def _add(guest: Guest, blob: Blob) -> int:
    """A handle of a blob that is open."""
    return guest.add_handle(blob, lambda: guest.inferlet.blobs.close(blob))


@suspending
def await_mail(guest: Guest, future: int) -> Any:
    return when_done(guest, future, lambda: _take_mail(guest, future))
