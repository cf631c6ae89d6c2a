"""Runs the HTTP API on a socket. It owns neither the server behind it nor the process; the caller handles signals."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from pie_control.server_api import ServerApi

from .app import create_app

MAX_FRAME_BYTES = 16 << 20
"""Largest WebSocket frame from a client."""
GRACE_SECONDS = 1


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the command line decides what a signal means


class HttpServer:
    """The HTTP API of one runtime on one listening socket, which it owns. `close` takes at most about 1 s."""

    def __init__(self, api: ServerApi, listener: socket.socket, max_body_bytes: int = 64 << 20) -> None:
        config = uvicorn.Config(
            create_app(api, max_body_bytes),
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="websockets-sansio",
            ws_max_size=MAX_FRAME_BYTES,
            ws_per_message_deflate=False,  # costs more time than it saves on a loopback or local network
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._listener = listener
        self._server = _Uvicorn(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Base address, like `http://127.0.0.1:8011`."""
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Returns when the server accepts requests."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)  # uvicorn offers nothing to wait for
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Stops listening, closes connections; idempotent."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._listener.close()
