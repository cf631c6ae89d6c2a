"""http.wit: requests to servers outside."""

from __future__ import annotations

import binascii
import json
from binascii import a2b_base64
from collections.abc import Callable
from typing import Any

from ...errors import CallError, InvalidArgument
from ...inferlets.blobs import Blob, BlobTable, KeptBlob
from ...services.http.exchange import Chunk, Exchange, Head
from ...services.http.request import new_request
from ...services.http.trace_context import HEADER, in_trace
from ..guest import Guest
from ..limits.bounds import MOST_READ
from ..suspending import suspending, when_done

A_BODY = "the body of an answer"


class Body:
    """The body of a response, while the inferlet has its handle."""

    __slots__ = ("exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange


class Keeping:
    """Reads a body to its end, into a blob. What has come is reserved among the blobs of the inferlet before it is
    kept; all of it is free again if the rest does not come."""

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


def http_request(guest: Guest, method: str, url: str, headers: str, body: str, options: str) -> int:
    seconds, blobs = guest.inferlet.limits.http_seconds, guest.inferlet.blobs
    sent: list[Blob] = []

    def blob_of(handle: int) -> bytes | bytearray:
        sent.append(guest.handle(handle, Blob))
        return sent[0].data

    def ended() -> None:
        for blob in sent:
            blobs.close(blob)

    request = new_request(method, url, headers, _decoded(body), options, seconds, blob_of)
    request = in_trace(request, guest.inferlet.environment.get(HEADER, ""))
    with guest.inferlet.waits.issuing() as future:
        exchange = guest.outbound.begin(request, _concludes(guest, future), ended)
    for blob in sent:  # it counts until it is sent, also if the program closes it before
        blobs.hold(blob)
    guest.inferlet.waits.begin(future, exchange.close, f"the answer of {request.target.host}")
    return future


def _decoded(body: str) -> bytes:
    try:
        return a2b_base64(body, strict_mode=True) if body else b""
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"body is not base64: {error}") from None


def _concludes(guest: Guest, future: int) -> Callable[[Any], None]:
    return lambda value: guest.inferlet.waits.conclude(future, value)


def _take_response(guest: Guest, future: int) -> tuple[int, str]:
    head: Head = guest.futures.take(future, Head)
    number = guest.add_handle(Body(head.exchange), head.exchange.close)
    return number, json.dumps({"status": head.status, "url": head.url, "headers": head.headers})


@suspending
def await_response(guest: Guest, future: int) -> Any:
    return when_done(guest, future, lambda: _take_response(guest, future))


def read_body(guest: Guest, body: int, most: int) -> int:
    exchange = guest.handle(body, Body).exchange
    if most < 1:
        raise InvalidArgument("most: read one byte at least")
    size = min(most, MOST_READ)
    guest.pending.check(size)
    return _begin(guest, exchange.stop_reading, lambda answer: exchange.read(size, answer), size)


def keep_body(guest: Guest, body: int) -> int:
    keeping = Keeping(guest.handle(body, Body).exchange, guest.inferlet.blobs)
    future = _begin(guest, keeping.stop, keeping.start)
    guest.forget_handle(body)
    return future


def _begin(
    guest: Guest, stop: Callable[[], None], start: Callable[[Callable[[Any], None]], None], size: int = 0
) -> int:
    """The future of what `start` begins, which gets the callback for its value, of `size` bytes, and `stop` ends."""
    with guest.inferlet.waits.issuing(size) as future:
        guest.inferlet.waits.begin(future, stop, A_BODY)
        start(_concludes(guest, future))
    return future
