"""Checks every request first: limits the body's size, finds the tenant that sends it, and refuses what foreign web
pages send.

Without a file of tenants anyone who reaches the port may use the server. A browser can reach a port on its machine or
in its network on behalf of any page that it shows, in two ways, and both are refused here:

- A page of another origin sends a request: it carries the page's `Origin`.
- The page's own name is made to resolve to our address (DNS rebinding), so that page and server seem to have one
  origin: the name stands in `Host`. An address there is harmless, since nobody can make it mean another machine.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pie_control.errors import Forbidden, Overloaded, Unauthorized
from pie_control.gateway.programs import ROUTES
from pie_control.host_memory import TenantBytes

from .callers import Caller, Callers
from .failures import error_body, response
from .messages import ErrorBody
from .served.rate_limits import rate_limit_headers

LOOPBACK_NAME = "localhost"
PROGRAMS, BLOBS = "/v1/programs", "/v1/blobs"
OPEN_PATHS = frozenset({"/health", "/ready", "/v1/health", "/openapi.json"})
"""What is told without a token: that the server is there, and what its API is."""
PAGES, ASSETS = ("/", "/playground", "/docs"), "/assets"
"""Pages in a browser, and their files: they hold nothing of the server, and ask for a token themselves."""
MOST_NOTED = 100
"""Characters of a path that are kept of what an admin did."""
NETLOC = re.compile(r"(?:\[([^\]@\s]+)\]|([^:@/?#\s]+))(?::\d+)?")


BODIES_PART = 4
"""The bodies of all requests together have this part of the memory of the machine: a fourth."""
OF_BODIES = "of bodies of requests at a time: try again when some have been answered"
SMALL_BODY = 64 << 10
"""Bytes of each body that do not count: small requests pass, whatever large ones come."""
ANSWERS_PART = 8
"""The large answers that wait for their clients have this part of the memory of the machine together: an eighth."""
OF_ANSWERS = "of answers that wait for clients to read them: read some, and ask again"

SESSION = "/v1/session"
"""What each of its messages needs, the session checks."""
CHANGES = (
    (PROGRAMS, "upload"),
    (BLOBS, "launch"),
    ("/v1/inferlets", "launch"),
    ("/v1/responses", "launch"),
    ("/v1/adapters", "adapters"),
)
"""The capability that a key needs to change something below a path."""
LOOKS = (
    PROGRAMS,
    "/v1/inferlets",
    "/v1/responses",
    "/v1/adapters",
    "/v1/models",
    "/v1/dashboard",
    "/v1/usage",
    "/v1/statistics",
)
"""What any key of a tenant may look at."""


def needed(method: str, path: str) -> str | None:
    """The capability that a request needs; None: any key will do. What nobody has thought of needs `admin`."""
    if is_open(method, path) or path == SESSION:
        return None
    if path in ROUTES:
        return "launch"
    if method in ("GET", "HEAD") and path.startswith("/v1/inferlets/") and path.endswith("/events"):
        return "launch"  # what one reads, another one does not get
    if method in ("GET", "HEAD"):
        return None if any(_is_below(path, one) for one in LOOKS) else "admin"
    return next((capability for one, capability in CHANGES if _is_below(path, one)), "admin")


def is_open(method: str, path: str) -> bool:
    """Whether a request needs no token."""
    is_page = path in PAGES or _is_below(path, ASSETS)
    return path in OPEN_PATHS or (is_page and method in ("GET", "HEAD"))


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


class AllowedHosts:
    """The names by which the server may be addressed, beside all addresses: `localhost`, the name that it listens on,
    and the operator's. Pages of the operator's names may use it too."""

    def __init__(self, listens_on: str, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(map(_bare, allowed)) - {""}
        self._names = self._allowed | {LOOPBACK_NAME, _bare(listens_on)}

    def objection(self, headers: Headers) -> tuple[int, str] | None:
        """Status and text of a refusal, or None if the request may pass."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if len(headers.getlist("host")) > 1:
            return 400, "a request has one header Host: a proxy might go by another one than this server"
        name = name_of(host)
        if not (is_address(name) or name in self._names):
            return 421, (
                f"this server does not answer to the name {name!r}: use its address, or start it with "
                f"--allowed-hosts {name or 'NAME'}"
            )
        if origin is not None and not self._is_ours(origin, host):
            return 403, (
                f"requests from web pages of another origin ({origin}) are refused: let the page come from this "
                "server, or through one proxy with it, whose name --allowed-hosts gives"
            )
        return None

    def _is_ours(self, origin: str, host: str) -> bool:
        try:
            netloc = urlsplit(origin).netloc
        except ValueError:
            return False
        return bool(netloc) and (netloc.lower() == host.lower() or name_of(netloc) in self._allowed)


def name_of(host: str) -> str:
    """The name or address in `name:port` or `[address]:port`, in lower case; empty if there is none."""
    found = NETLOC.fullmatch(host)
    return _bare(found[1] or found[2]) if found else ""


def _bare(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def is_address(name: str) -> bool:
    """Whether this is an IP address."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


class Body:
    """`Receive` of one request, whose body has at most `limit` bytes."""

    def __init__(self, receive: Receive, limit: int, setting: str, tenant: str, bodies: TenantBytes) -> None:
        self._receive = receive
        self._limit, self._setting = limit, setting
        self._tenant, self._bodies = tenant, bodies
        self._received = self._held = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            if self._received > self._limit:
                raise HTTPException(413, f"the body has more than {self._limit} bytes (see {self._setting})")
            if (more := self._received - SMALL_BODY - self._held) > 0:
                self._bodies.hold(self._tenant, more)
                self._held += more
        return message

    def close(self) -> None:
        """The request is over."""
        if self._held:
            self._bodies.release(self._tenant, self._held)


class Answer:
    """`Send` of one request. A large answer that is whole goes to its client in pieces, and counts until the client has
    taken it; it is refused where too much waits. Parts of a stream come when there is room for them."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, tenant: str, answers: TenantBytes) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._tenant, self._answers = tenant, answers
        self._held = 0
        self._is_refused = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and (size := _length(message)) > SMALL_BODY:
            await self._hold(size)
        if self._is_refused:
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if not self._held or len(body) <= SMALL_BODY:
            await self._send(message)
            return
        for end in range(SMALL_BODY, len(body) + SMALL_BODY, SMALL_BODY):
            piece = body[end - SMALL_BODY : end]
            await self._send({**message, "body": piece, "more_body": more or end < len(body)})

    async def _hold(self, size: int) -> None:
        try:
            self._answers.hold(self._tenant, size)
        except Overloaded as refusal:
            self._is_refused = True
            await response(refusal.status, error_body(refusal))(self._scope, self._receive, self._send)
        else:
            self._held = size

    def close(self) -> None:
        """The request is over."""
        if self._held:
            self._answers.release(self._tenant, self._held)


def _length(message: Message) -> int:
    """The bytes of an answer that is whole; 0: its head does not say."""
    return next((int(value) for name, value in message.get("headers", ()) if name == b"content-length"), 0)


class Guard:
    """ASGI middleware. A program may have `max_program_bytes`, a blob and a request of a served route `max_blob_bytes`,
    every other body `max_json_bytes`. Routes find the `Caller` in the state of the request; for OPEN_PATHS it may
    be None."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: AllowedHosts,
        callers: Callers,
        max_program_bytes: int,
        max_blob_bytes: int,
        max_json_bytes: int,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._callers = callers
        self._uploads = {
            PROGRAMS: (max_program_bytes, "--max-program-bytes"),
            **dict.fromkeys((BLOBS, *ROUTES), (max_blob_bytes, "--max-blob-bytes")),
        }
        self._others = (max_json_bytes, "--max-message-bytes")
        self._bodies = TenantBytes(BODIES_PART, OF_BODIES)
        self._answers = TenantBytes(ANSWERS_PART, OF_ANSWERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif objection := self._hosts.objection(headers := Headers(scope=scope)):
            await _refuse(*objection)(scope, receive, send)
        else:
            await self._admit(scope, headers, receive, send)

    async def _admit(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        try:
            state["caller"] = caller = self._callers.of(headers)
            caller.check(capability := needed(scope.get("method", "GET"), scope["path"]))
            if capability == "admin" and self._callers.ask:
                caller.api.note("admin", f"{scope.get('method', 'GET')} {scope['path'][:MOST_NOTED]}")
        except Forbidden as refusal:
            return await response(refusal.status, error_body(refusal))(scope, receive, send)
        except Unauthorized as refusal:
            if not is_open(scope.get("method", ""), scope["path"]):
                answer = response(refusal.status, error_body(refusal))
                answer.headers["www-authenticate"] = "Bearer"
                self._callers.knocked(scope)
                return await answer(scope, receive, send)
            state["caller"] = None
            return await self._pass(scope, receive, send, "")
        if caller.api.meter.has_budget:
            send = _telling_limits(send, caller, scope["path"])
        return await self._pass(scope, receive, send, caller.api.standing.tenant.name)

    async def _pass(self, scope: Scope, receive: Receive, send: Send, tenant: str) -> None:
        body = Body(receive, *self._uploads.get(scope["path"], self._others), tenant, self._bodies)
        answer = Answer(scope, receive, send, tenant, self._answers)
        try:
            await self._app(scope, body, answer)
        finally:
            body.close()
            answer.close()


def _telling_limits(send: Send, caller: Caller, path: str) -> Send:
    """Answers have headers that say what is left of budgets."""

    async def telling(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = rate_limit_headers(caller.api.meter, path, time.monotonic(), time.time())
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return telling


def _refuse(status: int, message: str) -> ASGIApp:
    return response(status, ErrorBody("bad-request" if status == 400 else "forbidden", message))


def json_limit(max_message_bytes: int) -> int:
    """Bytes of a frame or JSON body: a message of the largest size fits, with three bytes for each of its own, which
    is what escapes of letters take."""
    return 3 * max_message_bytes + (64 << 10)
