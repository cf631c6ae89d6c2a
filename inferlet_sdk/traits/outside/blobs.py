"""Blobs as objects: bytes that stay outside of the program until it reads them, from its client or a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from inferlet_sdk import bindings
from inferlet_sdk.dropped import drop
from inferlet_sdk.errors import InvalidState
from inferlet_sdk.event_loop import wait_for
from inferlet_sdk.traits.blobs import MOST_READ, blob_size, close_blob, open_blob, read_blob


class Blob:
    """Bytes outside of the program: `Blob.open("photo")`, `message.blobs["photo"]`, `await response.blob()`.

    `ctx.fill_image(blob)` shows it to a model, `http_post(url, data=blob)` sends it; neither reads it here. `read` and
    `for piece in blob` do. What an inferlet holds of blobs is bounded: one that the program drops is given back.
    """

    def __init__(self, handle: int, name: str) -> None:
        """`handle`: a number from a call of `traits`, which belongs to this object from now on."""
        self.name = name
        self._host = bindings.host
        self._handle: int | None = handle

    @classmethod
    def open(cls, name: str) -> Blob:
        """One that came with the launch (`pie run --blob NAME=FILE`). Raises NotFound, with the names that there
        are."""
        return cls(open_blob(name), name)

    def __repr__(self) -> str:
        return f"Blob({self.name!r}{', closed' if self._handle is None else ''})"

    @property
    def handle(self) -> int:
        """For calls of `traits`. Raises InvalidState if it is closed."""
        if self._handle is None:
            raise InvalidState(f"the blob {self.name!r} is closed: use it before `close`, or before its `with` ends")
        return self._handle

    @property
    def size(self) -> int:
        """In bytes."""
        return blob_size(self.handle)

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        """Bytes from `start` on: `length` of them, or all."""
        return read_blob(self.handle, start, length)

    def text(self) -> str:
        """All of it as text in UTF-8; bytes that are none become U+FFFD."""
        return self.read().decode("utf-8", "replace")

    def __iter__(self) -> Iterator[bytes]:
        """Piece by piece, so that the program never has all of a large one."""
        for start in range(0, self.size, MOST_READ):
            yield self.read(start, MOST_READ)

    def close(self) -> None:
        """Gives the bytes back. Idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            close_blob(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._handle is not None:
            drop(self, self._host)


class Message(str):
    """A message from the client: its text, and in `blobs` what came with it, by name."""

    blobs: Mapping[str, Blob]

    def __new__(cls, text: str, blobs: Sequence[tuple[str, int]] = ()) -> Message:
        """`blobs`: names and handles."""
        message = super().__new__(cls, text)
        message.blobs = {name: Blob(handle, name) for name, handle in blobs}
        return message


def take_message(future: int) -> Message:
    """Waits for a message from the client."""
    wait_for([future])
    text, _, blobs = bindings.core.await_message(future)
    return Message(text, blobs)


def take_message_if_any(future: int) -> Message | None:
    """Waits for a message from whom there may be none."""
    wait_for([future])
    message = bindings.core.await_message(future)
    return None if message is None else Message(message[0], message[2])
