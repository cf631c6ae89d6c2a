"""Connections that are kept for a further request of the same tenant to the same server.

A connection is kept after a response that was read to its end, for KEPT_SECONDS. Beyond MOST_KEPT the one that has been
idle longest is closed. Tenants never share one: where it leads was checked against the list of its tenant.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from .request import HttpRequest
from .rules import AllowList

if TYPE_CHECKING:
    import httpcore

KEPT_SECONDS = 4.0
"""Less than the five seconds after which many servers close an idle connection."""
MOST_KEPT = 64
"""All tenants of a host have so many together; each is a socket."""
OF_CONNECTIONS = ("negotiate", "ntlm")
"""Schemes of authorization that hold for a connection and not for a request."""

Key = tuple[str, tuple[str, str, int]]


class Sender(NamedTuple):
    """Who sends a request. `turn` is held while a name is looked up."""

    tenant: str
    allowed: AllowList
    turn: asyncio.Semaphore

    def key(self, request: HttpRequest) -> Key:
        """Requests with equal keys may follow each other on one connection."""
        return self.tenant, request.target.origin


class KeptConnections:
    """The connections that a host keeps. They belong to the thread of one event loop."""

    def __init__(self) -> None:
        self._kept: dict[httpcore.AsyncHTTPConnection, tuple[Key, asyncio.TimerHandle]] = {}  # idle longest: first
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, key: Key) -> httpcore.AsyncHTTPConnection | None:
        """The one that was used last, if the server has not closed it. It is not kept any more."""
        for connection, (its, _) in reversed(self._kept.items()):
            if its == key:
                self._forget(connection)
                if not connection.has_expired():
                    return connection
                self._close(connection)
                return self.take(key)
        return None

    def keep(self, sender: Sender, request: HttpRequest, connection: httpcore.AsyncHTTPConnection) -> None:
        """Keeps a connection on which a response has ended; one that cannot be used again is closed."""
        told = (value for name, value in request.headers if name.lower() == "authorization")
        if not connection.is_idle() or any(value.lower().startswith(OF_CONNECTIONS) for value in told):
            self._close(connection)
            return
        timer = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._drop, connection)
        self._kept[connection] = sender.key(request), timer
        if len(self._kept) > MOST_KEPT:
            self._drop(next(iter(self._kept)))

    def _drop(self, connection: httpcore.AsyncHTTPConnection) -> None:
        self._forget(connection)
        self._close(connection)

    def _forget(self, connection: httpcore.AsyncHTTPConnection) -> None:
        _, timer = self._kept.pop(connection)
        timer.cancel()

    def _close(self, connection: httpcore.AsyncHTTPConnection) -> None:
        task = asyncio.get_running_loop().create_task(connection.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def close(self) -> None:
        """Idempotent."""
        for connection in tuple(self._kept):
            self._drop(connection)
