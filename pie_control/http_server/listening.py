"""The listening socket, opened before the server imports or starts anything slow: a bad address fails early. And how
many connections are taken from it, when each needs a file descriptor."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import resource
import socket
import time
from collections.abc import Callable

from pie_control.errors import ConfigError

log = logging.getLogger(__name__)

SPARE = 24
"""File descriptors that connections leave: for processes that start again, and for files that are read and written."""
TAKEN_AT_ONCE = 8
"""Connections in one turn of the loop."""
PAUSE_SECONDS = 1.0
"""Until another try when no connection can be taken."""
SILENT_SECONDS = 60.0
"""Without such a pause, until the next one is logged again."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises ConfigError if the address is invalid or in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol given, asyncio disables Nagle's algorithm on accepted connections: tokens must not wait.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} of {host} is in use, perhaps by another `pie serve`: use that one (`pie list --server "
                f"http://{f'[{host}]' if ':' in host else host}:{port}` tells what it runs), stop it, or choose "
                "another port by --port (0: any free one)"
            ) from None
        why = str(error).rstrip(".")
        raise ConfigError(f"cannot listen on {host}:{port}: {why}; choose another --host or --port") from None
    listener.setblocking(False)
    return listener


def room_for_connections(wanted: int) -> int:
    """How many connections of `wanted` the file descriptors of this process allow, beside those that it has. Raises its
    own limit as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/dev/fd")) + SPARE
    if soft != resource.RLIM_INFINITY and soft < used + wanted:
        soft = used + wanted if hard == resource.RLIM_INFINITY else min(hard, used + wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(2, min(wanted, soft - used))


class Acceptor:
    """Takes connections from a listening socket; belongs to one event loop. asyncio's own way tries as often as its
    backlog says when there are no file descriptors, and logs each time; this one pauses."""

    def __init__(self, listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make_protocol = make_protocol
        self._opening: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._last_pause = -SILENT_SECONDS

    def start(self) -> None:
        """Takes what waits, and what comes from now on."""
        self._timer = None
        self._loop.add_reader(self._listener, self._take)

    def stop(self) -> None:
        """Takes no more. Idempotent."""
        self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()

    def _take(self) -> None:
        for _ in range(TAKEN_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            connection.setblocking(False)
            opening = self._loop.create_task(self._open(connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:  # the client has gone
            connection.close()

    def _pause(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._last_pause > SILENT_SECONDS:
            log.warning("connections wait, for none can be taken now: %s (see ulimit -n)", error.strerror)
        self._last_pause = now
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(PAUSE_SECONDS, self.start)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
