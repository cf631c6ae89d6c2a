"""Connections to servers outside. The only module that imports httpcore, which takes 40 ms: it is loaded on a thread
when the first request is made.

httpcore is what httpx sends with. Alone it knows no cookies, proxies of the environment, redirects or decompression,
so nothing of these has to be switched off, and its backend is where an address is checked before it is connected to.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import httpcore

from ...errors import NotAllowed, RequestFailed, TimedOut
from ...fair_places import FairPlaces
from .kept import KeptConnections, Sender
from .request import HttpRequest
from .rules import Address, try_address

RESOLVERS = 32
"""Threads of a host that ask for addresses; a thread waits as long as the system's resolver does."""
MOST_ADDRESSES = 4
"""Most addresses of one name that are tried."""
CONNECT_SECONDS = 10.0
"""For one address."""
SLICE_BYTES = 1 << 16
"""Bytes of a body that are handed over at a time."""
HEAD_BYTES, HEAD_PIECE_BYTES = 64 << 10, 1024
"""What a server may send until the head of its response has come, and what is looked at together: it may be dozens of
interim responses, and others wait meanwhile."""
USER_AGENT = b"pie-inferlet"
REPEATABLE = frozenset(["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
"""Methods of requests that may be sent twice (RFC 9110, 9.2.2). Others never go on a connection that was kept: if that
breaks, nobody knows whether the server has done what it was asked."""


class Resolver:
    """Asks the system for the addresses of names, on threads of its own: one that hangs holds up no other work."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="resolve")
        self._places = FairPlaces(RESOLVERS, halves=True)

    async def addresses(self, host: str, port: int, sender: Sender) -> list[Address]:
        """In the order of preference, each once. The sender's turn and a place of its tenant are held until the thread
        is free again, even if nobody waits any more. Raises RequestFailed."""
        written = try_address(host)
        if written is not None:
            return [written]
        await sender.turn.acquire()
        try:
            await self._places.take(sender.tenant)
        except BaseException:
            sender.turn.release()
            raise

        def free() -> None:
            self._places.give_back(sender.tenant)
            sender.turn.release()

        loop = asyncio.get_running_loop()
        try:
            asked = self._pool.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        except BaseException:
            free()
            raise
        asked.add_done_callback(lambda _: _call_soon(loop, free))
        return _addresses(host, await _answer(asked, host))

    def close(self) -> None:
        """Idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)


async def _answer(asked: Future[Any], host: str) -> Any:
    try:
        return await asyncio.wrap_future(asked)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestFailed(f"the name {host} has no address: {reason}") from None


def _addresses(host: str, found: Any) -> list[Address]:
    texts = dict.fromkeys(str(each[4][0]) for each in found)
    if any("%" in text for text in texts):  # with the name of an interface
        raise RequestFailed(f"{host} is an address within one network only")
    return [ip_address(text) for text in texts]


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to the addresses of a name that are allowed, and to no others."""

    def __init__(self, resolver: Resolver, sender: Sender) -> None:
        self._resolver = resolver
        self._sender = sender
        self._plain = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises NotAllowed, RequestFailed, TimedOut."""
        failure: Exception | None = None
        for address in await self._checked(host, port):
            try:
                return BoundedHead(await self._plain.connect_tcp(str(address), port, CONNECT_SECONDS), host)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        if isinstance(failure, httpcore.ConnectTimeout):
            raise TimedOut(f"no connection to {host}:{port} within {CONNECT_SECONDS:g} s")
        raise RequestFailed(f"no connection to {host}:{port} ({_reason(failure)}): see that a server is there")

    async def _checked(self, host: str, port: int) -> list[Address]:
        found = await self._resolver.addresses(host, port, self._sender)
        allowed, refusal = [], None
        for address in found:
            try:
                self._sender.allowed.check_address(host, address, port)
                allowed.append(address)
            except NotAllowed as error:
                refusal = refusal or error
        if not allowed and refusal is not None:
            raise refusal
        return allowed[:MOST_ADDRESSES]


class BoundedHead(httpcore.AsyncNetworkStream):
    """A connection to a server. From each request to `came` it may send HEAD_BYTES."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, host: str) -> None:
        self._stream = stream
        self._host = host
        self._left: int | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Raises RequestFailed."""
        if self._left is None:
            return await self._stream.read(max_bytes, timeout)
        if self._left <= 0:
            raise RequestFailed(f"{self._host} sends more than {HEAD_BYTES} bytes before its answer")
        data = await self._stream.read(min(max_bytes, HEAD_PIECE_BYTES), timeout)
        self._left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._left = HEAD_BYTES
        await self._stream.write(buffer, timeout)

    def came(self) -> None:
        """The head of the response has come."""
        self._left = None

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return BoundedHead(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._host)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def tls_context() -> ssl.SSLContext:
    """Trusts the authorities of the system (or of SSL_CERT_FILE) and those of certifi; takes about 20 ms."""
    return httpcore.default_ssl_context()


class Network:
    """What the requests of a host share; made on a thread."""

    def __init__(self) -> None:
        self.resolver = Resolver()
        self.kept = KeptConnections()
        self._tls = tls_context()

    async def send(
        self, request: HttpRequest, sender: Sender
    ) -> tuple[httpcore.AsyncHTTPConnection, httpcore.Response]:
        """Sends a request; the response, and its connection, which is the caller's. If one that was kept turns out to
        be closed by the server, the request goes once more, on a new one."""
        message = _message(request)
        kept = self.kept.take(sender.key(request)) if request.method in REPEATABLE else None
        if kept is not None:
            with suppress(httpcore.NetworkError, httpcore.RemoteProtocolError):
                return kept, await _response(kept, message)
        backend = CheckedBackend(self.resolver, sender)
        connection = httpcore.AsyncHTTPConnection(message.url.origin, self._tls, network_backend=backend)
        return connection, await _response(connection, message)

    def close(self) -> None:
        """Idempotent."""
        self.kept.close()
        self.resolver.close()


class Slices:
    """A body that is sent as fast as its server takes it, and is never whole in the buffers on its way."""

    def __init__(self, body: bytes | bytearray) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), SLICE_BYTES):
            yield bytes(self._body[start : start + SLICE_BYTES])


def _message(request: HttpRequest) -> httpcore.Request:
    target = request.target
    url = httpcore.URL(
        scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
    )
    headers = [(b"Host", target.authority.encode()), (b"Accept-Encoding", b"gzip")]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in request.headers]
    if not any(name.lower() == b"user-agent" for name, _ in headers):
        headers.append((b"User-Agent", USER_AGENT))
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        headers.append((b"Content-Length", str(len(request.body)).encode()))
    return httpcore.Request(request.method, url, headers=headers, content=Slices(request.body))


async def _response(connection: httpcore.AsyncHTTPConnection, message: httpcore.Request) -> httpcore.Response:
    try:
        response = await connection.handle_async_request(message)
    except BaseException:
        await connection.aclose()
        raise
    if isinstance(stream := response.extensions["network_stream"], BoundedHead):  # it has not become another protocol
        stream.came()
    return response


def as_call_error(error: Exception, host: str) -> RequestFailed:
    """What went wrong with a server, for the program."""
    match error:
        case httpcore.TimeoutException():
            return TimedOut(f"{host} did not answer in time")
        case httpcore.ConnectError():
            return RequestFailed(f"no secure connection to {host}: {_reason(error)}")
        case httpcore.RemoteProtocolError():
            return RequestFailed(f"{host} does not speak HTTP as it should: {_reason(error)}")
        case httpcore.NetworkError():
            return RequestFailed(f"the connection to {host} broke: {_reason(error)}")
    return RequestFailed(f"the request to {host} failed: {_reason(error)}")


def _reason(error: BaseException | None) -> str:
    """The first cause that says something."""
    while error is not None:
        if str(error):
            return str(error)
        error = error.__cause__
    return "no reason is known"
