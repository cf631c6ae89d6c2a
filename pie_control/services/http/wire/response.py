"""A response as it comes. httptools reads it, as it reads the requests of clients; how much of it may come before it
goes on is bounded here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httptools

from .connection import Connection

MOST_BESIDE = 100 << 10
"""Bytes of a head, or between two pieces of a body."""
INFORMATION = 200
"""Statuses below say that the response is still to come."""


class BadResponse(Exception):
    """A server that does not speak HTTP as it should, and how."""


async def ask(connection: Connection, method: str, message: bytes) -> Response:
    """Sends a request; the response to it, as far as its body. Raises Broken, BadResponse; then the connection is
    closed."""
    response = Response(method, connection)
    try:
        connection.send(message)
        await response.read_head()
    except BaseException:
        connection.close()
        raise
    return response


class Response:
    """`headers`: names are in lower case."""

    def __init__(self, method: str, connection: Connection) -> None:
        self.connection = connection
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self._has_body = method != "HEAD"
        self._pieces: list[bytes] = []  # of the body, that were read
        self._beside = 0  # bytes since the last of them
        self._is_over = self._is_last = False
        self._parser: Any = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)

    def header(self, name: str) -> str:
        """The value of the first header of this name, or nothing."""
        return next((value for one, value in self.headers if one == name), "")

    async def read_head(self) -> None:
        """Waits for status and headers. Raises BadResponse, Broken."""
        while not self.status:
            await self._read()

    async def body(self) -> AsyncIterator[bytes]:
        """The body in pieces, as they come. Raises BadResponse, Broken."""
        while self._pieces or not self._is_over:
            if self._pieces:
                piece = b"".join(self._pieces)
                self._pieces.clear()
                yield piece
            else:
                await self._read()

    async def _read(self) -> None:
        data = await self.connection.read()
        if data:
            self._feed(data)
        else:
            self._end_with_connection()
        if self._is_over:
            self._parser = None  # which refers to this response
            self.connection.answered(not self._is_last)

    def _feed(self, data: bytes) -> None:
        self._beside += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise BadResponse("it changes to another protocol") from None
        except httptools.HttpParserError as error:
            if not self._is_over:
                raise BadResponse(str(error)) from None
            self._is_last = True
        if self._beside > MOST_BESIDE and not self._is_over:
            raise BadResponse(f"it has sent {self._beside} bytes that are no body")

    def _end_with_connection(self) -> None:
        """A body of which nothing says how long it is ends with the connection."""
        if not self.status:
            raise BadResponse("it ended the connection without a response")
        if self.header("content-length") or self.header("transfer-encoding"):
            raise BadResponse("it ended the connection before the end of the body")
        self._is_over = self._is_last = True

    # ---- what the parser says ----

    def on_message_begin(self) -> None:
        self._is_last |= self._is_over  # more than was asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # else it stands behind the body
            self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1").strip()))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.status:
            return  # it is of another one
        if status < INFORMATION:
            self.headers.clear()
        else:
            self.status = status
            if not self._has_body:
                self.on_message_complete()

    def on_body(self, data: bytes) -> None:
        if self._is_over:
            self._is_last = True
        else:
            self._pieces.append(data)
            self._beside = 0

    def on_message_complete(self) -> None:
        if self.status and not self._is_over:
            self._is_over = True
            self._is_last |= not self._parser.should_keep_alive()
