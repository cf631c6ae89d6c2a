"""Requests to servers outside (http.wit; paper, section 5.1)."""

from __future__ import annotations

import base64
import json as json_text
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Self, TypedDict, Unpack
from urllib.parse import quote, unquote, urlencode, urlsplit

from inferlet_sdk import bindings
from inferlet_sdk.dropped import drop
from inferlet_sdk.errors import RequestFailed, call
from inferlet_sdk.event_loop import wait_for, waited_for
from inferlet_sdk.futures import HostFuture
from inferlet_sdk.texts import json_text as written
from inferlet_sdk.texts import shown
from inferlet_sdk.traits.arguments import number, whole, wrong
from inferlet_sdk.traits.arguments import text as checked_text
from inferlet_sdk.traits.outside.blobs import Blob
from inferlet_sdk.traits.outside.spans import traceparent

__all__ = ["Headers", "Response", "close_body", "http_get", "http_post", "http_request", "keep_body", "read_body"]

PIECE_BYTES = 1 << 16
"""Bytes of a body that are read at a time."""
_KEPT = "%/:?#[]@!$&'()*+,;=~"
"""Characters that mean something in a URL."""


class Headers(Mapping[str, str]):
    """Headers of a response. Names are in lower case and are looked up in any case; values of one that comes several
    times are joined by ", ". `pairs` has them as they came."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self.pairs = pairs
        self._joined: dict[str, str] = {}
        for name, value in pairs:
            self._joined[name] = f"{self._joined[name]}, {value}" if name in self._joined else value

    def __getitem__(self, name: str) -> str:
        return self._joined[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._joined)

    def __len__(self) -> int:
        return len(self._joined)

    def __repr__(self) -> str:
        return f"Headers({self._joined})"


class Response:
    """A response: `status`, `headers`, `url` (after redirects), and a body that is read when it is wanted.

        response = await http_get("https://api.example.com/weather")
        weather = await response.json()

    `read`, `text` and `json` give all of the body, as often as you like; `async for` gives it piece by piece, as bytes,
    once. In a plain `def main`, without asyncio, leave out `await`, and use `for`.
    """

    def __init__(self, body: int, about: str) -> None:
        told = json_text.loads(about)
        self.status: int = told["status"]
        self.url: str = told["url"]
        self.headers: Headers = Headers([(name, value) for name, value in told["headers"]])
        self._host = bindings.host
        self._body: int | None = body
        self._whole: bytes | None = None
        self._begun = False

    def __repr__(self) -> str:
        return f"Response({self.status}, {self.url!r})"

    @property
    def ok(self) -> bool:
        """Whether the status says so: 200 to 299."""
        return 200 <= self.status < 300

    def raise_for_status(self) -> Response:
        """Raises RequestFailed unless the status is 200 to 299; returns the response."""
        if not self.ok:
            raise RequestFailed(f"{self.url} answered with status {self.status}")
        return self

    # ---- the body ----

    def read(self) -> Any:
        """All of the body, as bytes: `await response.read()`."""
        return waited_for(self._read())

    def text(self) -> Any:
        """The body as text, in the character set that its header names, else in UTF-8: `await response.text()`."""
        return waited_for(self._text())

    def json(self) -> Any:
        """The value of a body that is JSON: `await response.json()`."""
        return waited_for(self._json())

    async def _read(self) -> bytes:
        if self._whole is None:
            self._whole = b"".join([piece async for piece in self])
        return self._whole

    async def _text(self) -> str:
        return (await self._read()).decode(self._charset(), "replace")

    async def _json(self) -> Any:
        data = await self._read()
        try:
            return json_text.loads(data)
        except ValueError as error:
            what = self.headers.get("content-type", "no content type")
            raise RequestFailed(
                f"{self.url} answered with status {self.status} and {what}, not JSON: {error}"
            ) from None

    def _charset(self) -> str:
        _, _, charset = self.headers.get("content-type", "").partition("charset=")
        name = charset.split(";")[0].strip(" \"'")
        try:
            b" ".decode(name or "utf-8", "replace")
        except (LookupError, ValueError):  # there is none of this name, or it is none for texts of others
            return "utf-8"
        return name or "utf-8"

    def blob(self) -> Any:
        """The body as a `Blob`: `blob = await response.blob()`. It does not pass through the program, which may show it
        to a model (`fill_image`), send it on, or read a part of it."""
        return waited_for(self._keep())

    async def _keep(self) -> Blob:
        self._begin()
        body, self._body = self._body, None
        if body is None:
            raise RequestFailed("the body was closed")
        name = unquote(urlsplit(self.url).path).rpartition("/")[2]
        return Blob(await keep_body(body), name or "body")

    def lines(self) -> AsyncIterator[str]:
        """The body line by line, as it comes: `async for line in response.lines()`. Reads streams of events and of
        JSON lines."""
        return _Lines(self, self._charset())

    def __aiter__(self) -> Self:
        self._begin()
        return self

    async def __anext__(self) -> bytes:
        if self._body is not None and (piece := await read_body(self._body)):
            return piece
        self.close()
        raise StopAsyncIteration

    def __iter__(self) -> Iterator[bytes]:
        self._begin()
        while self._body is not None and (piece := read_body(self._body).result()):
            yield piece
        self.close()

    def _begin(self) -> None:
        if self._begun:
            raise RequestFailed("the body was read before, or closed: `read`, `text` and `json` keep what they read")
        self._begun = True

    def close(self) -> None:
        """Gives up the rest of the body; the connection is closed. Idempotent."""
        self._begun = True
        body, self._body = self._body, None
        if body is not None:
            close_body(body)

    async def __aenter__(self) -> Response:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._body is not None:
            drop(self, self._host)


class _Lines:
    """The lines of a body. A wait for the next one that is cancelled leaves what has come to the next wait."""

    def __init__(self, response: Response, charset: str) -> None:
        self._pieces, self._charset = aiter(response), charset
        self._lines: deque[bytes] = deque()
        self._rest = b""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while not self._lines:
            if not (piece := await anext(self._pieces, b"")) and not self._rest:
                raise StopAsyncIteration
            *lines, self._rest = (self._rest + (piece or b"\n")).split(b"\n")
            self._lines.extend(lines)
        return self._lines.popleft().removesuffix(b"\r").decode(self._charset, "replace")


def _take_chunk(future: int) -> bytes:
    wait_for([future])
    return base64.b64decode(bindings.core.await_text(future))


def _take_response(future: int) -> Response:
    wait_for([future])
    return Response(*bindings.http.await_response(future))


# ---- calls under their own names ----


def read_body(body: int, most: int = PIECE_BYTES) -> HostFuture[bytes]:
    """The next bytes of a body by its number, at most `most`; none at its end. `Response` does it."""
    number = whole(body, "body", wanted="the number of a body")
    return HostFuture(call(bindings.http.read_body, number, whole(most, "most", least=1)), _take_chunk)


def keep_body(body: int) -> HostFuture[int]:
    """The handle of a blob with the rest of a body, by its number. `Response.blob` does it."""
    number = whole(body, "body", wanted="the number of a body")
    return HostFuture(call(bindings.http.keep_body, number), bindings.core.await_number)


def close_body(body: int) -> None:
    """Drops a body by its number. `Response.close` does it."""
    call(bindings.core.drop, whole(body, "body", wanted="the number of a body"))


# ---- requests ----


class RequestOptions(TypedDict, total=False):
    """What goes with every request: see `http_request`."""

    headers: Mapping[str, str] | None
    params: Mapping[str, Any] | None
    timeout: float | None
    redirects: int


class BodyOptions(RequestOptions, total=False):
    """What goes with a request that has a body: see `http_request`."""

    json: Any
    text: str | None
    data: bytes | Blob | Mapping[str, Any] | None


def http_get(url: str, **options: Unpack[RequestOptions]) -> HostFuture[Response]:
    """Asks a server: `response = await http_get("https://api.example.com/search", params={"q": "rain"})`.

    See `http_request`.
    """
    return http_request("GET", url, **options)


def http_post(url: str, **options: Unpack[BodyOptions]) -> HostFuture[Response]:
    """Sends a body: a value as `json=`, text as `text=`, or `data=` (bytes or a blob as they are, a mapping as a form).

    See `http_request`.
    """
    return http_request("POST", url, **options)


def http_request(
    method: str,
    url: str,
    *,
    json: Any = None,
    text: str | None = None,
    data: bytes | Blob | Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    redirects: int = 5,
) -> HostFuture[Response]:
    """A request with any method. `params` are added to the URL. `timeout`: seconds for all of it, the body of the
    response included (None: as long as the server allows). `redirects`: how many to follow; 0 gives the first response.

    An answer with a status like 404 is a response, not an error: see `Response.ok` and `raise_for_status`. Raises
    Unsupported if the server makes no requests, NotAllowed for a server that its operator does not allow,
    InvalidArgument, QuotaExceeded; RequestFailed and TimedOut at the `await`. `cancel()` ends the request at once.
    """
    body, content_type, blob = _body(json, text, data)
    pairs = _pairs(headers)
    if (span := traceparent()) and not any(name.lower() == "traceparent" for name, _ in pairs):
        pairs.append(("traceparent", span))
    if content_type and not any(name.lower() == "content-type" for name, _ in pairs):
        pairs.append(("Content-Type", content_type))
    options: dict[str, Any] = {"redirects": whole(redirects, "redirects"), **blob}
    if timeout is not None:
        options["timeout"] = number(timeout, "timeout")
    future = call(
        bindings.http.http_request,
        checked_text(method, "method").upper(),
        _with_params(url, params),
        json_text.dumps(pairs),
        base64.b64encode(body).decode(),
        written(options),
    )
    return HostFuture(future, _take_response)


def _body(json: Any, text: str | None, data: Any) -> tuple[bytes, str | None, dict[str, int]]:
    """The bytes, what they are, and the option for those that the host has."""
    if sum(value is not None for value in (json, text, data)) > 1:
        raise TypeError("give one of json, text and data")
    if json is not None:
        try:
            return written(json).encode(), "application/json", {}
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"json: cannot be written as JSON: {error}") from None
    if text is not None:
        return checked_text(text, "text").encode(), "text/plain; charset=utf-8", {}
    if isinstance(data, Mapping):
        return _encoded(data, "data").encode(), "application/x-www-form-urlencoded", {}
    if isinstance(data, Blob):
        return b"", None, {"blob": data.handle}
    if data is not None and not isinstance(data, bytes | bytearray):
        raise wrong("data", "bytes, a Blob, or a mapping for a form", data)
    return bytes(data or b""), None, {}


def _pairs(headers: Mapping[str, str] | None) -> list[tuple[str, str]]:
    if headers is None:
        return []
    if not isinstance(headers, Mapping):
        raise wrong("headers", "a mapping of names to values", headers)
    return [
        (checked_text(name, "headers"), checked_text(value, f"headers[{name!r}]")) for name, value in headers.items()
    ]


def _with_params(url: str, params: Mapping[str, Any] | None) -> str:
    """Spaces and characters beyond ASCII are written as %XX."""
    url = quote(checked_text(url, "url"), safe=_KEPT)
    if not params:
        return url
    if not isinstance(params, Mapping):
        raise wrong("params", "a mapping of names to values", params)
    url, sharp, fragment = url.partition("#")
    return f"{url}{'&' if '?' in url else '?'}{_encoded(params, 'params')}{sharp}{fragment}"


def _encoded(values: Mapping[str, Any], name: str) -> str:
    """The values as URLs and forms have them: a list gives its name several times."""
    try:
        return urlencode(values, doseq=True)
    except UnicodeEncodeError as error:
        told = shown(error.object)
        raise ValueError(f"{name}: {told} has half of a surrogate pair, which is no text") from None
