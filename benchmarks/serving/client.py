"""A client of HTTP servers that costs as little as it can, since it shares the processor with what it measures.

A connection notes when bytes come and looks for the end of the answer, no more. What they mean is read afterwards,
unless somebody follows the events of an answer.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from ..report import BenchmarkError

HEAD_END = b"\r\n\r\n"
LAST_CHUNK = b"\r\n0\r\n\r\n"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"transfer-encoding: *chunked", re.IGNORECASE)
EVENT_END = re.compile(rb"\r?\n\r?\n")
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,12} *(;.*)?")
SILENCE_SECONDS = 300.0
"""A server that says nothing for so long, while it owes an answer, is given up."""
PERSEVERANCE = 3
"""Tries of a request whose kept connection the server closes before it answers."""


class OpponentError(BenchmarkError):
    """A server is none of completions, or refuses what it is asked."""


class _Parts:
    """Takes an answer apart as its bytes come."""

    def __init__(self) -> None:
        self._head = b""
        self._bytes = b""  # that are no whole piece
        self._text = b""  # that is no whole event

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Those of the body that are there with these bytes."""
        self._bytes += data
        if not self._head:
            head, found, rest = self._bytes.partition(HEAD_END)
            if not found:
                return
            self._head, self._bytes = head, rest
        if not CHUNKED.search(self._head):
            piece, self._bytes = self._bytes, b""
            yield piece
            return
        while (line := self._bytes.find(b"\r\n")) > 0:
            if CHUNK_SIZE.fullmatch(size := self._bytes[:line]) is None:
                raise OpponentError(f"the answer comes in no chunks of HTTP: {size[:200]!r}")
            end = line + 2 + int(size.split(b";")[0], 16)
            if len(self._bytes) < end + 2:
                return
            piece, self._bytes = self._bytes[line + 2 : end], self._bytes[end + 2 :]
            yield piece

    def events(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Server-sent events that are JSON, and are there with these bytes."""
        for piece in self.pieces(data):
            *events, self._text = EVENT_END.split(self._text + piece)
            for event in events:
                _, _, text = event.partition(b"data:")
                if text.lstrip().startswith(b"{"):
                    yield _object(text)


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object. Raises OpponentError."""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise OpponentError(f"the answer is no JSON object: {text[:200]!r}")
    return value


@dataclass
class Answer:
    """What came for one request. `began`: when it was to be sent; `arrivals`: when bytes came, and which. Times are of
    `time.perf_counter`, in seconds."""

    began: float
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def raw(self) -> bytes:
        return b"".join(data for _, data in self.arrivals)

    @property
    def status(self) -> int:
        """Of HTTP. Raises OpponentError."""
        if (found := STATUS.match(self.raw)) is None:
            raise OpponentError(f"the answer is none of HTTP: {self.raw[:200]!r}")
        return int(found[1])

    @property
    def seconds(self) -> float:
        """Until all was there."""
        return self.arrivals[-1][0] - self.began

    def pieces(self) -> Iterator[tuple[float, bytes]]:
        """The parts of the body, and when each was there."""
        parts = _Parts()
        return ((when, piece) for when, data in self.arrivals for piece in parts.pieces(data))

    def body(self) -> bytes:
        """The body."""
        return b"".join(data for _, data in self.pieces())

    def value(self) -> dict[str, Any]:
        """The body, a JSON object. Raises OpponentError."""
        return _object(self.body())

    def events(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Server-sent events that are JSON, and when each was there."""
        parts = _Parts()
        return ((when, event) for when, data in self.arrivals for event in parts.events(data))

    def checked(self) -> Answer:
        """Itself. Raises OpponentError for a refusal."""
        if self.status != 200:
            said = self.body()[:500].decode(errors="replace")
            raise OpponentError(f"the request was answered with {self.status}: {said}")
        return self


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._done: asyncio.Future[None] | None = None
        self._missing: int | None = None  # bytes until the end; None: the last chunk says so, or there is no head yet
        self._tail = b""
        self._is_chunked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def send(self, request: bytes, answer: Answer) -> None:
        """Returns when the answer is there. Raises ConnectionError if the server hangs up before, TimeoutError if it
        is silent for too long."""
        assert self._transport is not None
        self._answer, self._missing, self._tail, self._is_chunked = answer, None, b"", False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        self._watch(answer, -1)
        try:
            await self._done
        finally:
            self._watching.cancel()

    def _watch(self, answer: Answer, parts: int) -> None:
        """Ends the wait if nothing has come behind so many parts of the answer, or looks again later."""
        if len(answer.arrivals) > parts:
            later = asyncio.get_running_loop().call_later
            self._watching = later(SILENCE_SECONDS, self._watch, answer, len(answer.arrivals))
        elif self._done is not None and not self._done.done():
            self._done.set_exception(TimeoutError())

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            return
        answer.arrivals.append((time.perf_counter(), data))
        answer.news.set()
        if self._is_chunked:
            self._tail = self._tail[-len(LAST_CHUNK) :] + data[-len(LAST_CHUNK) :]
            if self._tail.endswith(LAST_CHUNK):
                self._finish()
            return
        if self._missing is None:
            self._read_head(answer.raw)
        else:
            self._missing -= len(data)
        if self._missing is not None and self._missing <= 0:
            self._finish()

    def _read_head(self, raw: bytes) -> None:
        end = raw.find(HEAD_END) + len(HEAD_END)
        if end < len(HEAD_END):
            return
        if found := LENGTH.search(raw, 0, end):
            self._missing = int(found[1]) - (len(raw) - end)
        elif CHUNKED.search(raw, 0, end):
            self._is_chunked, self._tail = True, raw[-len(LAST_CHUNK) :]
            if raw.endswith(LAST_CHUNK):
                self._finish()

    def _finish(self) -> None:
        done, self._answer = self._done, None
        if done is not None and not done.done():
            done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionResetError("the server hung up"))

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class HttpClient:
    """Speaks to the server at `url`, with as many kept connections as requests at a time. `token`: of a tenant; "": it
    shows none. Raises OpponentError for an address that is none."""

    def __init__(self, url: str, token: str = "") -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise OpponentError(f"{url} is no address of a server: give one like http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._place = host, port or (443 if self._tls else 80)
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._head = f"Host: {parts.netloc}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
        self._kept: list[_Connection] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, where: TracebackType | None) -> None:
        for one in self._kept:
            one.close()
        self._kept.clear()
        await asyncio.sleep(0)  # they close in the next turn of the loop

    def request(self, path: str, body: dict[str, Any]) -> bytes:
        """The bytes of a request, made before the time counts."""
        return self.raw_request(path, msgspec.json.encode(body))

    def raw_request(self, path: str, body: bytes) -> bytes:
        """The same of a body that is there."""
        head = f"POST {self._base}{path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def get(self, path: str) -> Answer:
        """What stands at a path. Raises OpponentError."""
        return (await self.send(f"GET {self._base}{path} HTTP/1.1\r\n{self._head}\r\n".encode())).checked()

    async def follow(self, request: bytes) -> AsyncIterator[dict[str, Any]]:
        """The events of the answer to a request, as they come. Raises OpponentError."""
        answer, parts, seen = Answer(time.perf_counter()), _Parts(), 0
        sending = asyncio.create_task(self._exchange(request, answer))
        sending.add_done_callback(lambda _: answer.news.set())
        try:
            while not sending.done() or seen < len(answer.arrivals):
                await answer.news.wait()
                answer.news.clear()
                for _, data in answer.arrivals[seen:]:
                    seen += 1
                    for event in parts.events(data):
                        yield event
            await sending
            answer.checked()
        finally:
            sending.cancel()

    async def send(self, request: bytes, due: float | None = None) -> Answer:
        """The answer to a request; `due`: when it was to be sent, if not now. Raises OpponentError."""
        answer = Answer(time.perf_counter() if due is None else due)
        await self._exchange(request, answer)
        return answer

    async def _exchange(self, request: bytes, answer: Answer) -> None:
        for _ in range(PERSEVERANCE):
            try:
                connection = await self._connection()
            except (OSError, UnicodeError) as error:
                raise OpponentError(f"{self.url} takes no connection: {error}") from error
            try:
                await connection.send(request, answer)
            except ConnectionError:
                if answer.arrivals:
                    break
                continue
            except TimeoutError:
                connection.close()
                raise OpponentError(
                    f"{self.url} has said nothing for {SILENCE_SECONDS:g} s: does it hang, or has too much to do?"
                ) from None
            except BaseException:  # nobody waits any more
                connection.close()
                raise
            self._kept.append(connection)
            return
        raise OpponentError(f"{self.url} hung up before the end of an answer")

    async def _connection(self) -> _Connection:
        while self._kept:
            if (one := self._kept.pop()).is_open:
                return one
        _, made = await asyncio.get_running_loop().create_connection(_Connection, *self._place, ssl=self._tls)
        return made
