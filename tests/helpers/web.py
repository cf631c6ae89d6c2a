"""Servers outside, for tests: small ones that do what a test says, on ports of this machine."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

Handler = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass
class Web:
    """A server. `asked`: the requests that came; `open`: connections that are there now."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    open: int = 0

    def url(self, path: str = "/", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def until_open(self, count: int) -> None:
        """Waits until so many connections are there."""
        while self.open != count:
            await asyncio.sleep(0.001)


def answer(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(to: str) -> bytes:
    return answer(b"", "302 Elsewhere", f"Location: {to}")


async def read_request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body)


@asynccontextmanager
async def serving(
    handler: Handler, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", keeps: bool = False
) -> AsyncIterator[Web]:
    """A server that answers each connection with what `handler` writes. With `keeps` it then reads a further request,
    and does not look whether the client goes while a handler works."""
    web = Web()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        web.connections += 1
        web.open += 1
        watch = None
        try:
            while True:
                asked = await read_request(reader)
                web.asked.append(asked)
                if not keeps:
                    watch = asyncio.create_task(_ended(reader, task))
                await handler(asked, writer)
                await writer.drain()
                if not keeps:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            pass  # the client is gone
        finally:
            if watch is not None:
                watch.cancel()
            web.open -= 1
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        for task in tasks:
            task.cancel()
        server.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)


async def _ended(reader: asyncio.StreamReader, task: asyncio.Task[None]) -> None:
    """Ends the handler when the client closes the connection."""
    with suppress(ConnectionError, ssl.SSLError):
        await reader.read()
    task.cancel()
