"""Connections to servers outside: a name is looked up once, and what is connected to is the address that was checked.
It is loaded on a thread when the first request is made."""

from __future__ import annotations

import asyncio
import socket
import ssl
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import certifi

from ...errors import NotAllowed, RequestFailed, TimedOut
from .kept import KeptConnections, Sender
from .request import HttpRequest, Target
from .rules import Address, try_address
from .wire.connection import Broken, Connection
from .wire.response import BadResponse, Response, ask

RESOLVERS = 16
"""Threads of a host that ask for addresses; a thread waits as long as the system's resolver does."""
MOST_ADDRESSES = 4
"""Most addresses of one name that are tried."""
CONNECT_SECONDS = 10.0
"""For one address."""
USER_AGENT = "pie-inferlet"
REPEATABLE = frozenset(["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
"""Methods of requests that may be sent twice (RFC 9110, 9.2.2). Others never go on a connection that was kept: if that
breaks, nobody knows whether the server has done what it was asked."""


class Resolver:
    """Asks the system for the addresses of names, on threads of its own: one that hangs holds up no other work."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="resolve")

    async def addresses(self, host: str, port: int, turn: asyncio.Semaphore) -> list[Address]:
        """In the order of preference, each once. `turn` is held until the thread is free again, even if nobody waits
        any more. Raises RequestFailed."""
        written = try_address(host)
        if written is not None:
            return [written]
        await turn.acquire()
        loop = asyncio.get_running_loop()
        try:
            asked = self._pool.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        except BaseException:
            turn.release()
            raise
        asked.add_done_callback(lambda _: _call_soon(loop, turn.release))
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


class NotSecure(Exception):
    """No TLS on a connection, and why."""


def tls_context() -> ssl.SSLContext:
    """Trusts the authorities of the system (or of SSL_CERT_FILE) and those of certifi; takes about 20 ms."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


class Network:
    """What the requests of a host share; made on a thread."""

    def __init__(self) -> None:
        self.resolver = Resolver()
        self.kept = KeptConnections()
        self._tls = tls_context()

    async def send(self, request: HttpRequest, sender: Sender) -> Response:
        """Sends a request; the response, whose connection is the caller's. If one that was kept turns out to be closed
        by the server, the request goes once more, on a new one. Raises NotAllowed, RequestFailed, TimedOut, NotSecure,
        Broken, BadResponse."""
        message = _message(request)
        kept = self.kept.take(sender.key(request)) if request.method in REPEATABLE else None
        if kept is not None:
            with suppress(Broken, BadResponse):
                return await ask(kept, request.method, message)
        return await ask(await self._connect(request.target, sender), request.method, message)

    async def _connect(self, target: Target, sender: Sender) -> Connection:
        """Connects to an address of a name that is allowed, and to no other."""
        failure: Exception | None = None
        for address in await self._checked(target.host, target.port, sender):
            try:
                return await self._open(address, target)
            except OSError as error:
                failure = error
        if isinstance(failure, TimeoutError):
            raise TimedOut(f"no connection to {target.host}:{target.port} within {CONNECT_SECONDS:g} s")
        raise RequestFailed(f"no connection to {target.host}:{target.port}: {_reason(failure)}")

    async def _open(self, address: Address, target: Target) -> Connection:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        connected = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        loop = asyncio.get_running_loop()
        try:
            connected.setblocking(False)
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.sock_connect(connected, (str(address), target.port))
        except BaseException:
            connected.close()
            raise
        if target.scheme == "http":
            _, connection = await loop.create_connection(Connection, sock=connected)
            return connection
        try:
            _, connection = await loop.create_connection(
                Connection, sock=connected, ssl=self._tls, server_hostname=target.host
            )
        except OSError as error:  # as those of ssl are
            raise NotSecure(error) from error
        return connection

    async def _checked(self, host: str, port: int, sender: Sender) -> list[Address]:
        found = await self.resolver.addresses(host, port, sender.turn)
        allowed, refusal = [], None
        for address in found:
            try:
                sender.allowed.check_address(host, address, port)
                allowed.append(address)
            except NotAllowed as error:
                refusal = refusal or error
        if not allowed and refusal is not None:
            raise refusal
        return allowed[:MOST_ADDRESSES]

    def close(self) -> None:
        """Idempotent."""
        self.kept.close()
        self.resolver.close()


def _message(request: HttpRequest) -> bytes:
    """The bytes that stand for a request, all of which was checked before."""
    target = request.target
    lines = [f"{request.method} {target.path} HTTP/1.1", f"Host: {target.authority}", "Accept-Encoding: gzip"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    if not any(name.lower() == "user-agent" for name, _ in request.headers):
        lines.append(f"User-Agent: {USER_AGENT}")
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(request.body)}")
    return "\r\n".join((*lines, "", "")).encode("latin-1") + request.body


def as_call_error(error: Exception, host: str) -> RequestFailed:
    """What went wrong with a server, for the program."""
    match error:
        case NotSecure():
            return RequestFailed(f"no secure connection to {host}: {_reason(error)}")
        case BadResponse():
            return RequestFailed(f"{host} does not speak HTTP as it should: {error}")
        case Broken():
            return RequestFailed(f"the connection to {host} broke: {_reason(error)}")
    return RequestFailed(f"the request to {host} failed: {_reason(error)}")


def _reason(error: BaseException | None) -> str:
    """The first cause that says something."""
    while error is not None:
        if str(error):
            return str(error)
        error = error.__cause__
    return "no reason is known"
