"""Runs the HTTP API on a socket. It owns neither the server behind it nor the process; the caller handles signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType

import uvicorn

from pie_control.config import ServerConfig
from pie_control.durable.keys import Keys
from pie_control.errors import ConfigError
from pie_control.server_api import ServerApi
from pie_control.tenants.accounts import Accounts

from .app import create_app
from .callers import Callers
from .connections import MAX_REFUSED, STALLED_SECONDS, Connections
from .guard import json_limit
from .listening import Acceptor, is_loopback, room_for_connections
from .protocols import HttpProtocol
from .session.protocol import SessionProtocol

log = logging.getLogger(__name__)

GRACE_SECONDS = 1
WATCH_SECONDS = 0.25
"""Between two looks at whether keys have changed."""
KEEP_ALIVE_SECONDS = 75
"""Without a request, until a connection is closed: longer than most clients and proxies keep theirs, since a request
that comes at this moment is lost."""
PING_SECONDS = 20
"""Between two pings of a session."""


class _Uvicorn(uvicorn.Server):
    """Serves the connections that it is given: `Acceptor` takes them."""

    def make_protocol(self) -> asyncio.Protocol:
        """For a new connection, once it has started."""
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the command line decides what a signal means


ON_ITSELF = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""For what stands for each address of a machine: its own one to itself."""


class HttpServer:
    """The HTTP API of one runtime on one listening socket, which it owns. `close` takes at most about 1 s."""

    def __init__(
        self,
        api: ServerApi,
        listener: socket.socket,
        config: ServerConfig,
        programs: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """`programs`: of the operator, which answer requests of served routes, by the names of those that they
        replace."""
        self._callers = Callers(api, config.accounts)
        if not (self._callers.ask or config.insecure or is_loopback(config.host)):
            raise ConfigError(
                f"anybody who reaches {config.host or 'this machine'} could run programs here: make a key "
                "(`pie keys add default --name NAME`, with the --state of this server) or give a file of tenants "
                "(--tenants); --insecure serves all the same"
            )
        self._connections = Connections(config.max_connections, config.max_connections_per_client)
        members = {"registry": self._connections}
        app = create_app(api, config, self._callers, programs)
        self._begin_again: Callable[[], Awaitable[None]] = app.state.begin_again
        settings = uvicorn.Config(
            app,
            http=type("Http", (HttpProtocol,), members),
            ws=type("Session", (SessionProtocol,), members),
            log_config=None,  # its messages go where ours go
            log_level="warning",
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # anybody could claim to be another client
            ws_max_size=json_limit(config.limits.max_message_bytes),
            ws_per_message_deflate=False,  # costs more time than it saves on a loopback or local network
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=STALLED_SECONDS,  # the answer comes behind all that the client has to read before
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self.api = api
        self._listener = listener
        self._server = _Uvicorn(settings)
        self._task: asyncio.Task[None] | None = None
        self._acceptor: Acceptor | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Base address, like `http://127.0.0.1:8011`, by which this machine reaches it."""
        host, port = self._listener.getsockname()[:2]
        host = ON_ITSELF.get(host, host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def open_port(self) -> int | None:
        """The port at which each address of this machine is listened on; None: only one address is."""
        host, port = self._listener.getsockname()[:2]
        return int(port) if host in ON_ITSELF else None

    def use(self, accounts: Accounts) -> None:
        """Asks for tokens of these tenants from now on. Sessions and requests whose token is none of theirs end, and
        with a session what ends with it; the others launch with what their tenant may by now. Inferlets that run stay
        as they are."""
        self._callers.use(accounts)
        self._connections.check(self._callers.objection)

    async def start(self) -> None:
        """Returns when the server accepts requests."""
        await self._begin_again()
        self._task = asyncio.create_task(self._server.serve(sockets=[]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)  # uvicorn offers nothing to wait for
        if self._task.done():
            self._task.result()
        self._bound_connections()
        self._connections.start()
        self._acceptor = Acceptor(self._listener, self._server.make_protocol)
        self._acceptor.start()
        if self.api.keys is not None:
            self._watch = asyncio.create_task(self._watch_keys(self.api.keys))

    async def _watch_keys(self, keys: Keys) -> None:
        """Sessions and requests end whose key was revoked or has expired, or that have none although the first one was
        made. A fault is logged, and does not end the watch."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                if keys.look():
                    self._callers.forget_keys()
                    self._connections.check(self._callers.objection)
            except Exception:
                log.exception("the keys could not be looked at")

    def _bound_connections(self) -> None:
        """Allows as many as there are descriptors for, now that all processes of the server run."""
        most, wanted = self._connections.most, self._connections.most + self._connections.most_refused
        room = room_for_connections(wanted)
        if room < wanted:
            self._connections.most_refused = min(MAX_REFUSED, room // 4)
            self._connections.most = room - self._connections.most_refused
            lack = "there are file descriptors for %d connections, not for %d (--max-connections): raise ulimit -n"
            log.warning(lack, self._connections.most, most)

    async def drain(self, seconds: float) -> None:
        """Takes no new work from now on, and waits until all inferlets have ended, for at most this time. What there is
        can be asked about meanwhile; `/ready` says no."""
        running = self.api.running
        if running:
            log.info("no new work is taken; %d inferlets have %g s to end (--drain-seconds)", running, seconds)
        await self.api.drain(seconds)

    async def close(self) -> None:
        """Stops listening, closes connections; idempotent."""
        if self._acceptor is not None:
            self._acceptor.stop()
            self._acceptor = None
        if self._watch is not None:
            self._watch.cancel()
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._connections.stop()
        self._listener.close()
