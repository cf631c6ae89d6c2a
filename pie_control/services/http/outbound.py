"""Outgoing requests of a host, and of each of its inferlets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import Exhausted, QuotaExceeded
from ...tenants.tenant import Tenant
from .exchange import Answer, Exchange, Work
from .kept import Sender
from .request import HttpRequest
from .rules import AllowList, NoServers

MOST_AT_ONCE = 256
"""Requests of all inferlets of a host; each has a socket."""
OF_FREE = 3
"""A tenant may have so many times as many as are free: three quarters alone, and some are left for others."""
LOOKUPS = 4
"""Names of one inferlet that are looked up at a time."""


class HttpClient:
    """What the inferlets of a host share. `allow`: the servers that programs may reach, where their tenant has no list
    of its own. Belongs to the thread of one event loop."""

    def __init__(self, allow: Sequence[str] = (), most: int = MOST_AT_ONCE) -> None:
        """Raises ConfigError."""
        self._most = most
        self._of_tenants: Counter[str] = Counter()
        self._allowed = AllowList(allow)
        self._network: asyncio.Task[Any] | None = None

    @property
    def under_way(self) -> int:
        """How many requests there are."""
        return self._of_tenants.total()

    def begins(self, tenant: str) -> None:
        """A tenant has a further request. Raises Exhausted."""
        own, open_ = self._of_tenants[tenant], self.under_way
        if own >= OF_FREE * (self._most - open_):
            raise Exhausted(
                f"the inferlets here have {open_} requests open, {own} of them of tenant {tenant}: of {self._most} "
                "some are left for others; try again in a while"
            )
        self._of_tenants[tenant] += 1

    def ended(self, tenant: str) -> None:
        """One of its requests needs no connection any more."""
        self._of_tenants[tenant] -= 1
        self._of_tenants += Counter()  # drops tenants without any

    async def network(self) -> Any:
        """What connects; loaded at the first request, on a thread, and again at the next one if that failed."""
        if self._network is None:
            self._network = asyncio.get_running_loop().create_task(asyncio.to_thread(_load))
            self._network.add_done_callback(self._loaded)
        return await asyncio.shield(self._network)

    def _loaded(self, network: asyncio.Task[Any]) -> None:
        if not network.cancelled() and network.exception() is not None:
            self._network = None

    def outbound(self, tenant: Tenant, most: int, most_bytes: int, work: Work, may: bool = True) -> Outbound:
        """The requests of an inferlet: `most` at a time, with responses of `most_bytes`. `work`: see `Exchange`.
        `may`: whether the key that launched it allows any."""
        allowed = self._allowed
        if not may:
            allowed = NoServers()
        elif tenant.http_allow is not None:
            allowed = AllowList(tenant.http_allow, tenant.name)
        return Outbound(self, tenant.name, allowed, most, most_bytes, work)

    def close(self) -> None:
        """Idempotent."""
        if self._network is not None:
            if self._network.done() and not self._network.cancelled():
                self._network.result().close()
            self._network.cancel()


def _load() -> Any:
    from .network import Network

    return Network()


class Outbound:
    """The requests of one inferlet."""

    def __init__(
        self, client: HttpClient, tenant: str, allowed: AllowList, most: int, most_bytes: int, work: Work
    ) -> None:
        self._client = client
        self._sender = Sender(tenant, allowed, asyncio.Semaphore(LOOKUPS))
        self._most = most
        self._most_bytes = most_bytes
        self._work = work
        self._exchanges: set[Exchange] = set()

    def __len__(self) -> int:
        """Requests whose responses have not ended, and are wanted."""
        return sum(not one.is_left for one in self._exchanges)

    def begin(self, request: HttpRequest, answer: Answer, on_end: Callable[[], None] = lambda: None) -> Exchange:
        """`answer` gets the `Head` of the response or a CallError. `on_end` is called when the request needs its body
        no more, and its connection is closed. Raises NotAllowed, Unsupported, QuotaExceeded,
        Exhausted."""
        self._sender.allowed.check_host(request.target.host, request.target.port)
        if len(self) >= self._most:
            raise QuotaExceeded(
                f"{self._most} requests are open (max_http_requests): read their bodies to the end, or close them"
            )
        tenant = self._sender.tenant
        self._client.begins(tenant)

        def ended(exchange: Exchange) -> None:
            self._exchanges.discard(exchange)
            self._client.ended(tenant)
            on_end()

        exchange = Exchange(request, self._sender, self._most_bytes, self._work, answer, ended)
        self._exchanges.add(exchange)
        exchange.start(self._client.network)
        return exchange

    def close(self) -> None:
        """Ends all requests. Idempotent."""
        for exchange in tuple(self._exchanges):
            exchange.close()
