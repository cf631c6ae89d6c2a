"""What is taken for a response, byte by byte: servers of the tests beside write what they should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pie_control.services.http.wire.response import MOST_BESIDE, BadResponse, Response


class Pieces:
    """A connection that says what it was given."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = [*pieces]
        self.more: bool | None = None  # of `answered`

    async def read(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    def answered(self, more: bool) -> None:
        self.more = more


def read(method: str, *pieces: bytes) -> tuple[int, list[tuple[str, str]], bytes, bool | None]:
    """Status, headers, body, and whether another request may follow."""

    async def whole() -> tuple[int, list[tuple[str, str]], bytes, bool | None]:
        connection = Pieces(*pieces)
        response = Response(method, connection)  # type: ignore[arg-type]
        await response.read_head()
        body = b"".join([piece async for piece in response.body()])
        return response.status, response.headers, body, connection.more

    return asyncio.run(whole())


def in_one(data: bytes) -> list[bytes]:
    return [data]


def by_bytes(data: bytes) -> list[bytes]:
    return [data[place : place + 1] for place in range(len(data))]


@pytest.mark.parametrize("cut", [in_one, by_bytes])
@pytest.mark.parametrize(
    ("said", "status", "headers", "body", "more"),
    [
        (b"HTTP/1.1 200 OK\r\nX:  a \r\nContent-Length: 3\r\n\r\nabc", 200, {"x": "a"}, b"abc", True),
        (b"HTTP/1.1 200\nContent-Length: 3\n\nabc", 200, {}, b"abc", True),
        (b"HTTP/1.1 204 None\r\n\r\n", 204, {}, b"", True),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", 200, {}, b"to the end", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", 200, {}, b"a", False),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na", 200, {}, b"a", False),
        (
            b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\nX: behind\r\n\r\n",
            404,
            {},
            b"abc",
            True,
        ),
    ],
)
def test_what_is_a_response(
    cut: Callable[[bytes], list[bytes]], said: bytes, status: int, headers: dict[str, str], body: bytes, more: bool
) -> None:
    found = read("GET", *cut(said))
    assert (found[0], found[2], found[3]) == (status, body, more)
    framing = ("content-length", "transfer-encoding", "connection")
    assert {name: value for name, value in found[1] if name not in framing} == headers


def test_the_answer_to_head_has_no_body() -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"
    assert read("HEAD", said)[2:] == (b"", True)
    assert read("HEAD", said + b"abc")[2:] == (b"", False)


@pytest.mark.parametrize(
    "beyond", [b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb", b"HTTP/1.1 103 Hints\r\n\r\n"]
)
def test_who_says_more_than_was_asked_gets_no_further_request(beyond: bytes) -> None:
    status, headers, body, more = read("GET", b"HTTP/1.1 201 OK\r\nContent-Length: 1\r\n\r\na" + beyond)
    assert (status, headers, body, more) == (201, [("content-length", "1")], b"a", False)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "without a response"),
        (b"HTTP/1.1 103 Hints\r\n\r\n", "without a response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", "before the end of the body"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", "before the end of the body"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk size"),
        (b"HTTP/1.1 101 Other\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "another protocol"),
        (b"SSH-2.0-x\r\n", "HTTP/"),
    ],
)
def test_what_is_none(said: bytes, why: str) -> None:
    with pytest.raises(BadResponse, match=why):
        read("GET", said)


@pytest.mark.parametrize(
    "begin", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: "]
)
def test_what_is_no_body_is_bounded(begin: bytes) -> None:
    with pytest.raises(BadResponse, match="bytes that are no body"):
        read("GET", begin, *[b"x" * 1000] * (MOST_BESIDE // 1000 + 1))
