"""http.wit: requests to servers outside."""

from __future__ import annotations

import binascii
import json
from binascii import a2b_base64
from collections.abc import Callable
from typing import Any

from ...errors import InvalidArgument
from ...inferlets.blobs import Blob
from ...services.http.exchange import Exchange, Head
from ...services.http.request import new_request
from ...services.http.trace_context import HEADER, in_trace
from ..guest import Guest
from ..suspending import suspending, when_done
from .keeping import Keeping

MOST_READ = 1 << 18
"""Bytes of a body that one call gives."""


A_BODY = "the body of an answer"


class Body:
    """The body of a response, while the inferlet has its handle."""

    __slots__ = ("exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange


def http_request(guest: Guest, method: str, url: str, headers: str, body: str, options: str) -> int:
    seconds = guest.inferlet.limits.http_seconds

    def blob_of(handle: int) -> bytes:
        return bytes(guest.handle(handle, Blob).data)

    request = new_request(method, url, headers, _decoded(body), options, seconds, blob_of)
    request = in_trace(request, guest.inferlet.environment.get(HEADER, ""))
    outbound, future = guest.outbound, guest.futures.new()
    try:
        exchange = outbound.begin(request, _concludes(guest, future))
    except BaseException:
        guest.futures.forget(future)
        raise
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
    future = guest.futures.new()
    guest.inferlet.waits.begin(future, exchange.stop_reading, A_BODY)
    try:
        exchange.read(size, _concludes(guest, future))
    except BaseException:
        guest.inferlet.waits.conclude(future, None)
        guest.futures.forget(future)
        raise
    return future


def keep_body(guest: Guest, body: int) -> int:
    exchange, inferlet, future = guest.handle(body, Body).exchange, guest.inferlet, guest.futures.new()
    keeping = Keeping(exchange, inferlet.blobs, _concludes(guest, future))
    inferlet.waits.begin(future, keeping.stop, A_BODY)
    try:
        keeping.start()
    except BaseException:
        inferlet.waits.conclude(future, None)
        guest.futures.forget(future)
        raise
    guest.forget_handle(body)
    return future
