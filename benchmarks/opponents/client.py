"""A client of servers of completions: requests in parallel, each on a connection that is kept."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..report import BenchmarkError

LIMIT = 16 << 20
CHECK_SECONDS = 10.0


class OpponentError(BenchmarkError):
    """A server is none of completions, or refuses what it is asked."""


class _Connection:
    """One connection, with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._head = b""

    async def send(self, method: str, host: str, path: str, body: bytes) -> Mapping[str, str]:
        """Sends a request; the headers of the answer, with its status as `:status`."""
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) < 2 or not words[0].startswith("HTTP/1."):
            raise ValueError("the answer is not HTTP/1.1")
        headers = {name.strip().lower(): value.strip() for name, _, value in (one.partition(":") for one in lines[1:])}
        return {**headers, ":status": words[1]}

    async def pieces(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The body, as it comes."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while length := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
                yield (await self.reader.readexactly(length + 2))[:-2]
            await self.reader.readuntil(b"\r\n")
        elif "content-length" in headers:
            yield await self.reader.readexactly(int(headers["content-length"]))
        else:
            yield await self.reader.read()
            self.writer.close()


BROKEN = (ConnectionError, OSError, EOFError, ValueError, asyncio.LimitOverrunError, msgspec.MsgspecError)


class CompletionClient:
    """Speaks to the server at `url`. Raises OpponentError for an address that is none, or a server that is none of
    completions."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OpponentError(f"{url} is no address of a server: give one like http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._place = parts.hostname, parts.port or (443 if self._tls else 80)
        self._host = parts.netloc
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._kept: list[_Connection] = []

    async def __aenter__(self) -> CompletionClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self._kept:
            one.writer.close()
        self._kept.clear()

    async def model(self) -> str:
        """The name of the first model that the server has."""
        try:
            found = await asyncio.wait_for(self._whole("GET", "/v1/models", b""), CHECK_SECONDS)
            name = found["data"][0]["id"]
            assert isinstance(name, str)
        except TimeoutError:
            raise OpponentError(f"{self.url} did not answer within {CHECK_SECONDS:g} s: is the server up?") from None
        except (OpponentError, KeyError, IndexError, TypeError, AssertionError) as error:
            wrong = error if isinstance(error, OpponentError) else "GET /v1/models names no model"
            raise OpponentError(
                f"{self.url} is no server of completions ({wrong}): give the address of vLLM, SGLang, llama.cpp's "
                "server or another one that has /v1/completions"
            ) from None
        return name

    async def get(self, path: str) -> bytes:
        """What stands at a path, of whatever server."""
        async with self._exchange("GET", path, b"") as pieces:
            return b"".join([piece async for piece in pieces])

    async def complete(self, path: str = "/v1/completions", **request: Any) -> dict[str, Any]:
        """The whole answer to a request."""
        return await self._whole("POST", path, msgspec.json.encode(request))

    async def stream(self, path: str = "/v1/completions", **request: Any) -> AsyncIterator[dict[str, Any]]:
        """The events of an answer, as they come."""
        async with self._exchange("POST", path, msgspec.json.encode({**request, "stream": True})) as pieces:
            rest = b""
            async for piece in pieces:
                *events, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
                for event in events:
                    data = event.removeprefix(b"data:").strip()
                    if data and data != b"[DONE]":
                        yield _checked(msgspec.json.decode(data))

    async def _whole(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        async with self._exchange(method, path, body) as pieces:
            return _checked(msgspec.json.decode(b"".join([piece async for piece in pieces])))

    @contextlib.asynccontextmanager
    async def _exchange(self, method: str, path: str, body: bytes) -> AsyncIterator[AsyncIterator[bytes]]:
        """One request on a connection that nobody uses. It is kept if the answer was read to its end."""
        connection = None
        try:
            connection = self._take_kept() or await self._connect()
            headers = await connection.send(method, self._host, self._base + path, body)
            pieces = connection.pieces(headers)
            if headers[":status"] != "200":
                said = b"".join([piece async for piece in pieces])[:500].decode(errors="replace")
                raise OpponentError(f"{path} was answered with {headers[':status']}: {said}")
            yield pieces
            if await anext(pieces, None) is None:
                self._kept.append(connection)
                connection = None
        except BROKEN as error:
            raise OpponentError(f"{self.url} broke off: {error or type(error).__name__}") from error
        finally:
            if connection is not None:
                connection.writer.close()

    def _take_kept(self) -> _Connection | None:
        """A connection that waits; servers close those that wait for long."""
        while self._kept:
            connection = self._kept.pop()
            if not connection.reader.at_eof():
                return connection
            connection.writer.close()
        return None

    async def _connect(self) -> _Connection:
        return _Connection(*await asyncio.open_connection(*self._place, limit=LIMIT, ssl=self._tls))


def _checked(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise OpponentError("the answer is no JSON object")
    if "error" in answer:
        raise OpponentError(f"the server says: {answer['error']}")
    return answer
