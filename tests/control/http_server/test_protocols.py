"""What a connection makes of the bytes that come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from pie_control.http_server.connections import Connections
from pie_control.http_server.protocols import MAX_HEAD_BYTES, HttpProtocol

POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"


class Wire(asyncio.Transport):
    """Notes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False
        self.news = asyncio.Event()

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written.append(bytes(data))
        self.news.set()

    def close(self) -> None:
        self.closed = True
        self.news.set()

    write_eof = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    async def until(self, is_there: Callable[[], bool]) -> None:
        while not is_there():
            self.news.clear()
            await self.news.wait()


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body."""
    body, message = b"", await receive()
    while message["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
        message = await receive()
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


def connected(test: Callable[[HttpProtocol, Wire], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        config = uvicorn.Config(echo, log_config=None, lifespan="off")
        kind = type("Http", (HttpProtocol,), {"registry": Connections(9, 9)})
        wire, protocol = Wire(), kind(config=config, server_state=ServerState(), app_state={})
        protocol.connection_made(wire)
        await test(protocol, wire)
        protocol.connection_lost(None)

    asyncio.run(asyncio.wait_for(run(), 60))


def statuses(wire: Wire) -> list[bytes]:
    return [one[1:4] for one in b"".join(wire.written).split(b"HTTP/1.1")[1:]]


def test_a_head_behind_a_large_body_is_no_large_head() -> None:
    body = b"x" * (MAX_HEAD_BYTES + 1)

    async def test(protocol: HttpProtocol, wire: Wire) -> None:
        protocol.data_received(POST % len(body) + b"\r\n" + body + POST % 3)
        protocol.data_received(b"\r\nabc")
        await wire.until(lambda: len(statuses(wire)) == 2)
        assert statuses(wire) == [b"200", b"200"]

    connected(test)


def test_the_head_of_an_answer_goes_with_what_follows_at_once() -> None:
    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await go_on.wait()
        for text in (b"a", b"b"):
            await send({"type": "http.response.body", "body": text, "more_body": text == b"a"})

    go_on = asyncio.Event()

    async def test(protocol: HttpProtocol, wire: Wire) -> None:
        for length in (3, 0):
            wire.written.clear()
            protocol.data_received(POST % length + b"\r\n" + b"x" * length)
            await wire.until(lambda: bool(wire.written))
            (written,) = wire.written
            assert written.endswith(b"\r\n\r\n" + b"x" * length)
        wire.written.clear()
        protocol.app = late
        protocol.data_received(POST % 0 + b"\r\n")
        await wire.until(lambda: bool(wire.written))
        assert wire.written[0].endswith(b"chunked\r\n\r\n"), "without what comes later"
        go_on.set()
        await wire.until(lambda: len(wire.written) == 3)
        assert wire.written[1:] == [b"1\r\na\r\n", b"1\r\nb\r\n0\r\n\r\n"]

    connected(test)


def test_a_large_head_behind_a_body_is_refused() -> None:
    async def test(protocol: HttpProtocol, wire: Wire) -> None:
        protocol.data_received(POST % 3 + b"\r\nabc" + POST % 3)
        await wire.until(lambda: bool(wire.written))
        for _ in range(MAX_HEAD_BYTES // 1024 + 1):
            protocol.data_received(b"x-more: " + b"x" * 1014 + b"\r\n")
        assert statuses(wire) == [b"200", b"431"]
        assert wire.closed

    connected(test)
