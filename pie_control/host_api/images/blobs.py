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


def _take_mail(guest: Guest, future: int) -> tuple[str, list[tuple[str, int]]]:
    letter: Letter = guest.futures.take(future, Letter)
    assert letter.message is not None, "the mail of a client ends with the inferlet"
    handles: list[tuple[str, int]] = []
    try:
        for name, data in letter.message.blobs.items():
            handles.append((name, _add_blob(guest, data)))
    except BaseException:
        for _, handle in handles:
            close_blob(guest, handle)
        letter.not_taken()
        raise
    return letter.message.text, handles


def _add_blob(guest: Guest, data: bytes) -> int:
    blobs = guest.inferlet.blobs
    blobs.reserve(len(data))
    blob = blobs.adopt(data)
    try:
        return guest.add_handle(blob)
    except BaseException:
        blobs.close(blob)
        raise


@suspending
def await_mail(guest: Guest, future: int) -> Any:
    return when_done(guest, future, lambda: _take_mail(guest, future))
