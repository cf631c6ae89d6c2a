"""The body of a response on its way into a blob."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import CallError
from ...inferlets.blobs import BlobTable, KeptBlob
from ...services.http.exchange import Chunk, Exchange
from ..limits.bounds import MOST_READ


class Keeping:
    """Reads a body to its end. What has come is reserved among the blobs of the inferlet before it is kept; all of it
    is free again if the rest does not come."""

    def __init__(self, exchange: Exchange, blobs: BlobTable) -> None:
        self._exchange = exchange
        self._blobs = blobs
        self._answer: Callable[[Any], None]
        self._data = bytearray()

    def start(self, answer: Callable[[Any], None]) -> None:
        """`answer` gets a `KeptBlob` or a CallError. Raises InvalidState while the body is being read."""
        self._answer = answer
        self._exchange.read(MOST_READ, self._take)

    def stop(self) -> None:
        """Nobody wants it any more."""
        self._exchange.close()
        self._blobs.release(len(self._data))
        self._data = bytearray()

    def _take(self, value: Chunk | CallError) -> None:
        if isinstance(value, CallError):
            self._fail(value)
        elif not value.data:
            self._answer(KeptBlob(self._blobs.adopt(self._data), self._blobs))
        else:
            try:
                self._blobs.reserve(len(value.data))
            except CallError as error:
                self._fail(error)
                return
            self._data += value.data
            self._exchange.read(MOST_READ, self._take)

    def _fail(self, error: CallError) -> None:
        self.stop()
        self._answer(error)
