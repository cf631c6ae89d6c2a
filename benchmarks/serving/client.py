"""A client of HTTP servers that costs as little as it can, since it shares the processor with what it measures.

A connection notes when bytes come and looks for the end of the answer, no more. What they mean is read afterwards.
"""

from __future__ import annotations

import asyncio
import re
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..opponents.client import OpponentError

HEAD_END = b"\r\n\r\n"
LAST_CHUNK = b"\r\n0\r\n\r\n"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"transfer-encoding: *chunked", re.IGNORECASE)
EVENT_END = re.compile(rb"\r?\n\r?\n")
PERSEVERANCE = 3
"""Tries of a request whose kept connection the server closes before it answers."""


@dataclass
class Answer:
    """What came for one request. `began`: when it was to be sent; `arrivals`: when bytes came, and which. Times are of
    `time.perf_counter`, in seconds."""

    began: float
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def raw(self) -> bytes:
        return b"".join(data for _, data in self.arrivals)

    @property
    def status(self) -> int:
        """Of HTTP."""
        return int(self.raw[9:12])

    @property
    def seconds(self) -> float:
        """Until all was there."""
        return self.arrivals[-1][0] - self.began

    def pieces(self) -> Iterator[tuple[float, bytes]]:
        """The parts of the body, and when each was there."""
        raw, ends, size = self.raw, [], 0
        for _, data in self.arrivals:
            size += len(data)
            ends.append(size)
        begin = raw.index(HEAD_END) + len(HEAD_END)
        if not CHUNKED.search(raw, 0, begin):
            yield self.arrivals[-1][0], raw[begin:]
            return
        while length := int(raw[begin : (line := raw.index(b"\r\n", begin))].split(b";")[0], 16):
            end = line + 2 + length
            yield self.arrivals[bisect_left(ends, end)][0], raw[line + 2 : end]
            begin = end + 2

    def body(self) -> bytes:
        """The body."""
        return b"".join(data for _, data in self.pieces())

    def value(self) -> dict[str, Any]:
        """The body, a JSON object. Raises OpponentError."""
        try:
            value = msgspec.json.decode(self.body())
        except msgspec.DecodeError:
            value = None
        if not isinstance(value, dict):
            raise OpponentError(f"the answer is no JSON object: {self.body()[:200]!r}")
        return value

    def events(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Server-sent events that are JSON, and when each was there."""
        rest = b""
        for when, data in self.pieces():
            *events, rest = EVENT_END.split(rest + data)
            for event in events:
                _, _, text = event.partition(b"data:")
                if text.lstrip().startswith(b"{"):
                    yield when, msgspec.json.decode(text)


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
        """Returns when the answer is there. Raises ConnectionError if the server hangs up before."""
        assert self._transport is not None
        self._answer, self._missing, self._tail, self._is_chunked = answer, None, b"", False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._done

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            return
        answer.arrivals.append((time.perf_counter(), data))
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
    """Speaks to the server at `url` (http), with as many kept connections as requests at a time. `token`: of a tenant;
    "": it shows none."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise OpponentError(f"{url} is no address of a server: give one like http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self._place = parts.hostname, parts.port or 80
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._head = f"Host: {parts.netloc}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
        self._kept: list[_Connection] = []

    async def __aenter__(self) -> HttpClient:
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
        """What stands at a path."""
        return await self.send(f"GET {self._base}{path} HTTP/1.1\r\n{self._head}\r\n".encode())

    async def send(self, request: bytes, due: float | None = None) -> Answer:
        """The answer to a request; `due`: when it was to be sent, if not now. Raises OpponentError."""
        began = time.perf_counter() if due is None else due
        for _ in range(PERSEVERANCE):
            answer = Answer(began)
            try:
                connection = await self._connection()
            except OSError as error:
                raise OpponentError(f"{self.url} takes no connection: {error}") from error
            try:
                await connection.send(request, answer)
            except ConnectionError:
                if answer.arrivals:
                    break
                continue
            except BaseException:  # nobody waits any more
                connection.close()
                raise
            self._kept.append(connection)
            return answer
        raise OpponentError(f"{self.url} hung up before the end of an answer")

    async def _connection(self) -> _Connection:
        while self._kept:
            if (one := self._kept.pop()).is_open:
                return one
        _, made = await asyncio.get_running_loop().create_connection(_Connection, *self._place)
        return made
