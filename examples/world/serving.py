"""The world as a server on the loopback: plain HTTP, and MCP at /mcp.

It is for programs of this machine. Pages of the web that a browser shows are refused by their Origin, and names that
somebody makes resolve to this machine by their Host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from examples.world import mcp
from examples.world.tools import Toolbox, ToolFailed
from examples.world.village import Village
from inferlet_sdk.schemas.json_values import parse_json
from inferlet_sdk.schemas.mismatch import SchemaMismatch
from inferlet_sdk.tools.tool import as_text

SLOW, FLAKY = "population", "weather"
"""The tool that takes long, and the one that fails now and then."""
LARGEST_BODY = 64 << 10
LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Settings:
    """`delay`: seconds that each call takes; `slow`: what SLOW takes beside it; `failures`: the share of FLAKY's calls
    that fail. `more`: names of further relations. `bad`: with tools that answer what nobody can use."""

    seed: int = 0
    delay: float = 0.0
    slow: float = 1.0
    failures: float = 0.5
    more: tuple[str, ...] = ()
    bad: bool = False

    def __post_init__(self) -> None:
        for name in ("delay", "slow"):
            if not 0 <= getattr(self, name) <= 3600:
                raise ValueError(f"{name}: {getattr(self, name)} are no seconds from 0 to 3600")
        if not 0 <= self.failures <= 1:
            raise ValueError(f"failures: {self.failures} is no share from 0 to 1")


class World:
    """What answers. `called`: how often each tool has begun, `ended`: how often it is done."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.village = Village(settings.seed, settings.more)
        self.tools = Toolbox(self.village, settings.bad).tools
        self.called: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """What a tool gives, after its delay. Raises ToolFailed, LookupError for a tool that is none, and
        SchemaMismatch for arguments that do not fit."""
        if name not in self.tools:
            raise LookupError(f"there is no tool {name[:40]!r}: there are {', '.join(self.tools)}")
        bound = self.tools[name].bind(arguments)
        self.called[name] += 1
        await asyncio.sleep(self.settings.delay + self.settings.slow * (name == SLOW))
        try:
            if name == FLAKY:
                self._fail_now_and_then(bound)
            return await self.tools[name].run(bound)
        except LookupError as error:
            raise ToolFailed(error.args[0]) from None
        finally:
            self.ended[name] += 1

    def _fail_now_and_then(self, arguments: dict[str, Any]) -> None:
        """By the seed, the arguments and how often they came: whatever else is asked meanwhile changes nothing."""
        key = as_text(arguments)
        self._asked[key] += 1
        if self.village.number(FLAKY, key, self._asked[key]) % 1000 < 1000 * self.settings.failures:
            raise ToolFailed(f"{FLAKY} does not answer now: try again")


class _Guard:
    """Lets in what addresses this machine, and comes from no page of elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._app
        if scope["type"] == "http":
            headers = Request(scope).headers
            host, origin = _name(f"//{headers.get('host', '')}"), headers.get("origin")
            if host not in LOOPBACK:
                answer = _said(f"the world does not answer to the name {host!r}: use 127.0.0.1", 421)
            elif origin is not None and _name(origin) not in LOOPBACK:
                answer = _said(f"pages of another origin ({origin[:200]}) are refused: ask from this machine", 403)
        await answer(scope, receive, send)


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _said(text: str, status: int) -> Response:
    return PlainTextResponse(text, status)


def application(world: World) -> ASGIApp:
    """The routes of README.md."""

    async def root(_: Request) -> Response:
        return _said("The village's world. GET /tools, GET or POST /tools/NAME, GET /pages/TITLE, MCP at /mcp.", 200)

    async def listed(_: Request) -> Response:
        return JSONResponse([tool.declaration["function"] for tool in world.tools.values()])

    async def paged(request: Request) -> Response:
        return await _answered(world, "page", {"title": request.path_params["title"]})

    async def tool(request: Request) -> Response:
        arguments: Any = dict(request.query_params)
        if request.method == "POST":
            body = await _body(request)
            if isinstance(body, Response):
                return body
            arguments = body
        return await _answered(world, request.path_params["name"], arguments)

    async def messages(request: Request) -> Response:
        if request.method != "POST":
            return _said("MCP is spoken here by POST: there is no stream to listen to, and no session to end", 405)
        body = await _body(request)
        if isinstance(body, Response):
            return body
        revision = request.headers.get("mcp-protocol-version", mcp.REVISION)
        return await mcp.answer(world.call, world.tools, body, revision)

    ways = [
        Route("/", root),
        Route("/tools", listed),
        Route("/tools/{name}", tool, methods=["GET", "POST"]),
        Route("/pages/{title:path}", paged),
        Route("/mcp", messages, methods=["GET", "POST", "DELETE"]),
    ]
    return _Guard(Starlette(routes=ways))


async def _body(request: Request) -> dict[str, Any] | Response:
    """The object that a body is, or a refusal."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_BODY:
            return _said(f"the body has more than {LARGEST_BODY} bytes: send less", 413)
    try:
        value = parse_json(body.decode())
        json.dumps(value, ensure_ascii=False).encode()  # halves of surrogate pairs are no text
    except (SchemaMismatch, UnicodeError):
        return _said('the body is no JSON: send an object, as in {"city": "Oslo"}', 400)
    if not isinstance(value, dict):
        return _said('the body is no JSON object: send one, as in {"city": "Oslo"}', 400)
    return value


async def _answered(world: World, name: str, arguments: dict[str, Any]) -> Response:
    try:
        value = await world.call(name, arguments)
    except LookupError as error:
        return _said(error.args[0], 404)
    except SchemaMismatch as error:
        return _said(f"{name}: {error}", 400)
    except ToolFailed as error:
        return _said(str(error), 503 if name == FLAKY else 422)
    return Response(value if isinstance(value, bytes) else as_text(value), media_type="text/plain; charset=utf-8")


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # whoever serves decides what a signal means


@dataclass(frozen=True)
class Served:
    """A world that is up. `mcp` is where it speaks MCP, `place` its address and port."""

    world: World
    port: int

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.place}"

    @property
    def mcp(self) -> str:
        return f"{self.url}/mcp"


@contextlib.asynccontextmanager
async def serving(settings: Settings | None = None, port: int = 0) -> AsyncIterator[Served]:
    """Serves a world in this process, at a free port if none is named. Raises OSError for one that is taken."""
    world = World(settings or Settings())
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listener:
        listener.setblocking(False)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or a body waits 40 ms for the head's receipt
        config = uvicorn.Config(
            application(world),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=600,
        )
        server = _Uvicorn(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started and not task.done():
                await asyncio.sleep(0.005)  # uvicorn offers nothing to wait for
            yield Served(world, listener.getsockname()[1])
        finally:
            server.should_exit = True
            await task
