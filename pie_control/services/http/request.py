"""What an inferlet asks of a server: checked, and made safe to send. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec

from ...errors import InvalidArgument, RequestFailed
from .rules import DEFAULT_PORTS

MAX_URL = 8192
MAX_HEADERS = 64
MAX_HEADER_BYTES = 32 << 10
"""Most bytes of all headers of a request together."""
MAX_REDIRECTS = 10
MAX_OPTIONS = 1024
"""Characters."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OURS = frozenset(
    (
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "te",
        "trailer",
        "upgrade",
        "keep-alive",
        "expect",
        "accept-encoding",
        "proxy-authorization",
        "proxy-connection",
        "http2-settings",
    )
)
"""Headers that say how the request is sent: they belong to whoever sends it."""
HARMLESS = frozenset(["accept", "accept-language", "content-type", "user-agent"])
"""Headers that go along when another server is asked: the others may hold secrets for the first one."""
REDIRECTS = (301, 302, 303, 307, 308)

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_URL = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, taken apart. `host`: lower case, without brackets."""

    url: str
    scheme: str
    host: str
    port: int
    path: str  # with the query

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """`seconds`: for all of it, the body of the response included. `redirects`: that may be followed."""

    method: str
    target: Target
    headers: Headers
    body: bytes | bytearray
    seconds: float
    redirects: int


class _Options(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON text of `http-request`."""

    timeout: float | None = None
    redirects: int = 5
    blob: int | None = None


def _no_blob(_handle: int) -> bytes:
    raise InvalidArgument("blob: there are no blobs here")


def new_request(
    method: str,
    url: str,
    headers: str,
    body: bytes | bytearray,
    options: str,
    most_seconds: float,
    blob_of: Callable[[int], bytes | bytearray] = _no_blob,
) -> HttpRequest:
    """`blob_of` gives the bytes of a blob, by its handle. Raises InvalidArgument, which names what is wrong, and what
    `blob_of` raises."""
    if method not in METHODS:
        raise InvalidArgument(f"method: {_quoted(method)} is none of {', '.join(METHODS)}")
    given = _read_options(options)
    if given.blob is not None:
        if body:
            raise InvalidArgument("body: a request with a blob has no other body: give one of them")
        body = blob_of(given.blob)
    if body and method in ("GET", "HEAD"):
        raise InvalidArgument(f"body: a {method} request has none; use POST")
    seconds = most_seconds if given.timeout is None else given.timeout
    if not 0 < seconds <= most_seconds:
        raise InvalidArgument(f"timeout: {seconds:g} is not between 0 and {most_seconds:g} s (http_seconds)")
    if not 0 <= given.redirects <= MAX_REDIRECTS:
        raise InvalidArgument(f"redirects: {given.redirects} is not between 0 and {MAX_REDIRECTS}")
    return HttpRequest(method, parse_url(url), _read_headers(headers), body, seconds, given.redirects)


def _read_options(text: str) -> _Options:
    try:
        return msgspec.json.decode(text or "{}", type=_Options)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(
            f"options are a JSON object with timeout (seconds), redirects and blob: {error}"
        ) from None


def parse_url(url: str) -> Target:
    """Raises InvalidArgument."""
    if len(url) > MAX_URL:
        raise InvalidArgument(f"url: {len(url)} characters are more than {MAX_URL}")
    if not _URL.fullmatch(url):
        raise InvalidArgument("url: write spaces, control characters and those beyond ASCII as %XX")
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), (parts.hostname or "").lower(), parts.port
    except ValueError as error:
        raise InvalidArgument(f"url: {error}") from None
    if scheme not in DEFAULT_PORTS:
        raise InvalidArgument(f"url: the scheme is {_quoted(scheme)}; there are http and https")
    if "@" in parts.netloc:
        raise InvalidArgument("url: name and password do not belong there: send an Authorization header")
    if not host or len(host) > 253 or not _HOST.fullmatch(host) or "\\" in url:
        raise InvalidArgument(f"url: {_quoted(host)} is no name of a server (names beyond ASCII as xn--...)")
    if port == 0:
        raise InvalidArgument("url: there is no port 0")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.startswith("/"):
        raise InvalidArgument("url: the path begins with /")
    return Target(url, scheme, host, port or DEFAULT_PORTS[scheme], path)


def _read_headers(text: str) -> Headers:
    """A JSON list of pairs."""
    try:
        pairs = msgspec.json.decode(text or "[]", type=list[tuple[str, str]])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(f"headers are a JSON list of pairs of name and value: {error}") from None
    if len(pairs) > MAX_HEADERS or sum(len(name) + len(value) for name, value in pairs) > MAX_HEADER_BYTES:
        raise InvalidArgument(f"headers: there may be {MAX_HEADERS}, of {MAX_HEADER_BYTES} bytes together")
    for name, value in pairs:
        if not _TOKEN.fullmatch(name):
            raise InvalidArgument(f"headers: {_quoted(name)} is no name of a header")
        if name.lower() in OURS:
            raise InvalidArgument(f"headers: {name} says how a request is sent, so it is set here: leave it out")
        if not _VALUE.fullmatch(value):
            raise InvalidArgument(f"headers: the value of {name} has line ends or other characters that no header has")
    return tuple((name, value.strip()) for name, value in pairs)


def redirected(request: HttpRequest, status: int, location: str) -> HttpRequest:
    """The request that follows a redirect. Raises RequestFailed, InvalidArgument."""
    if not _URL.fullmatch(location):  # which `urljoin` would mend
        raise RequestFailed(f"{request.target.host} redirects to what is no URL: {_quoted(location)}")
    try:
        url = urljoin(request.target.url, location)
    except ValueError:
        raise RequestFailed(f"{request.target.host} redirects to what is no URL: {_quoted(location)}") from None
    target = parse_url(url)
    if request.target.scheme == "https" and target.scheme == "http":
        raise RequestFailed(f"{request.target.host} redirects from https to http, to {target.host}: not followed")
    method, headers, body = request.method, request.headers, request.body
    if (status == 303 and method not in ("GET", "HEAD")) or (status in (301, 302) and method == "POST"):
        method, body, headers = "GET", b"", _without(headers, {"content-type"})
    if target.origin != request.target.origin:
        headers = tuple((name, value) for name, value in headers if name.lower() in HARMLESS)
    return replace(request, method=method, target=target, headers=headers, body=body, redirects=request.redirects - 1)


def _without(headers: Headers, names: Iterable[str]) -> Headers:
    return tuple((name, value) for name, value in headers if name.lower() not in names)


def _quoted(text: Any) -> str:
    return json.dumps(text if len(text) <= 60 else text[:57] + "...")
