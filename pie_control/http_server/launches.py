"""How many inferlets each client runs: one client must not take all places of the server."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from weakref import WeakSet

from starlette.datastructures import Address

from pie_control.errors import TooManyRequests
from pie_control.registry.entry import Entry

MAX_ADDRESSES = 1024
"""With more, those of clients that run nothing are forgotten."""


class _Client:
    def __init__(self) -> None:
        self.starting = 0
        self.inferlets: WeakSet[Entry] = WeakSet()

    def count(self) -> int:
        """Inferlets that start or run."""
        return self.starting + sum(each.ended is None for each in self.inferlets)


class Launches:
    """Launches over HTTP, by the client's address."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._clients: defaultdict[str, _Client] = defaultdict(_Client)

    @contextlib.contextmanager
    def launching(self, address: Address | None) -> Iterator[Callable[[Entry], None]]:
        """Reserves a place while the block launches an inferlet, which it gives to the function. Raises
        TooManyRequests."""
        if len(self._clients) >= MAX_ADDRESSES:
            self._forget_idle()
        client = self._clients[address.host if address else ""]
        if client.starting + len(client.inferlets) >= self.most:
            client.inferlets = WeakSet(each for each in client.inferlets if each.ended is None)
            if client.count() >= self.most:
                raise TooManyRequests(
                    f"{self.most} inferlets of this client run, which is the limit for one client: end some, or let "
                    "the operator raise --max-inferlets-per-client"
                )
        client.starting += 1
        try:
            yield lambda inferlet: client.inferlets.add(inferlet)  # to the set that there is by then
        finally:
            client.starting -= 1

    def _forget_idle(self) -> None:
        for host in [host for host, client in self._clients.items() if not client.count()]:
            del self._clients[host]
