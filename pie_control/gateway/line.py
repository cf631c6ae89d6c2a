"""The line before launches: a bounded number of requests is served at a time, and a bounded number waits."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import TooManyRequests
from ..tenants.tenant import Standing, Tenant
from .refusal import Refused
from .waiting.pace import Pace
from .waiting.places import Places
from .waiting.waiters import Shares, Waiter, Waiters

TOO_MANY = "too many requests wait"
LOOK_SECONDS = 0.05
"""Between looks for memory, while it is all that those who wait lack."""


@dataclass(frozen=True, slots=True)
class LineLimits:
    """`serving`: requests that are served at a time; `waiting`: those that wait for that, each `wait_seconds` at
    most."""

    serving: int
    waiting: int
    wait_seconds: float


class Place:
    """What a request has while it is served: until it leaves, or its block ends."""

    def __init__(self, left: Callable[[bool], None]) -> None:
        self._left: Callable[[bool], None] | None = left

    def leave(self, evicted: bool = False) -> None:
        """The next one may go. `evicted`: others needed the memory of this one. Idempotent."""
        left, self._left = self._left, None
        if left is not None:
            left(evicted)


class WaitingLine:
    """Belongs to one event loop. While memory is short, and where requests were evicted, others wait for longer; but
    one is always served."""

    def __init__(
        self, limits: LineLimits, clock: Callable[[], float], has_memory: Callable[[], bool] = lambda: True
    ) -> None:
        """`clock` is in seconds. `has_memory`: whether there is memory for one more request."""
        self._limits = limits
        self._clock = clock
        self._has_memory = has_memory
        self._serving: Counter[str] = Counter()  # by tenant
        self._waiters = Waiters()
        self._came = 0  # that had to wait
        self._shares = Shares()
        self._pace = Pace(limits.serving)
        self._places = Places(limits.serving)
        self._look: asyncio.TimerHandle | None = None  # for memory, while it is all that those who wait lack

    def counts(self) -> dict[str, int]:
        """Requests that are served, and those that wait."""
        return {"served": self._serving.total(), "waiting": len(self._waiters)}

    def tenants(self) -> list[dict[str, Any]]:
        """Who is served and who waits: of each tenant the requests, and for how many seconds the first one has
        waited."""
        untils, latest = self._waiters.untils(), self._clock() + self._limits.wait_seconds
        return [
            {
                "tenant": name,
                "served": self._serving[name],
                "waiting": self._waiters.of(name),
                "oldest_wait": round(latest - untils.get(name, latest), 1),
            }
            for name in sorted({*self._serving, *untils})
        ]

    def check(self, standing: Standing) -> None:
        """Raises what `place` would raise at once for a request that comes now, and costs less."""
        self._check_tenant(standing)
        self._call()  # there may be memory by now
        if self._must_wait() and self._is_too_long(len(self._waiters) + 1) and self._waiters.would_be_last(standing):
            raise self._refusal(TOO_MANY)

    @contextlib.asynccontextmanager
    async def place(self, standing: Standing) -> AsyncIterator[Place]:
        """Waits for a place, which the block has until it ends or leaves. Raises Refused, with the seconds after which
        it makes sense to try again, if too many wait, or if it has waited too long; TooManyRequests if the tenant has
        as many requests as it may have inferlets."""
        tenant = standing.tenant
        self._check_tenant(standing)
        if self._must_wait():
            await self._wait(standing)
        else:
            self._take(tenant)
            self._note()
        place = Place(partial(self._leave, tenant))
        try:
            yield place
        finally:
            place.leave()

    def _leave(self, tenant: Tenant, evicted: bool) -> None:
        self._pace.ends(self._clock())
        if evicted:
            self._places.evicted(self._serving.total() - 1)
        elif self._waiters:
            self._places.ended()
        self._give_back(tenant)

    def _must_wait(self) -> bool:
        return bool(self._waiters) or self._is_full()

    def _is_full(self) -> bool:
        served = self._serving.total()
        return served >= self._places.count or (served > 0 and not self._has_memory())

    def _take(self, tenant: Tenant) -> None:
        self._serving[tenant.name] += 1
        self._shares.goes(tenant)

    def _note(self) -> None:
        self._pace.counts(self._must_wait(), self._clock())

    def _check_tenant(self, standing: Standing) -> None:
        name, most = standing.tenant.name, standing.tenant.max_inferlets
        if most is not None and self._serving[name] + self._waiters.of(name) >= most:
            raise TooManyRequests(
                f"{most} requests of tenant {name} are served or wait, and it may have no more inferlets: try again "
                "when some have been answered"
            )

    async def _wait(self, standing: Standing) -> None:
        self._came += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = Waiter(standing, turn, self._clock() + self._limits.wait_seconds, self._came)
        self._waiters.add(waiter)
        self._call()  # there may be memory by now
        if self._waiters and self._is_too_long(len(self._waiters)):  # one comes, one goes, however the pace changes
            self._refuse(self._waiters.last(), TOO_MANY)
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                await waiter.turn
        except TimeoutError:
            if not waiter.has_turn:
                raise self._too_late() from None
        except BaseException:
            if waiter.has_turn:
                self._give_back(standing.tenant)  # its turn came as it left
            raise
        finally:
            self._waiters.remove(waiter)
            self._note()

    def _is_too_long(self, waiting: int) -> bool:
        """One may wait whatever the pace was: it may be that of other requests, long ago."""
        if waiting > self._limits.waiting:
            return True
        return waiting > 1 and self._pace.surely(waiting, self._clock()) > self._limits.wait_seconds

    def _refuse(self, waiter: Waiter, reason: str) -> None:
        self._waiters.remove(waiter)
        if not waiter.turn.done():
            waiter.turn.set_exception(self._refusal(reason))

    def _too_late(self) -> Refused:
        return self._refusal(f"no place came free in {self._limits.wait_seconds:g} s")

    def _refusal(self, reason: str) -> Refused:
        seconds = max(1, math.ceil(self._pace.expected(len(self._waiters), self._clock())))
        return Refused(503, f"{reason}: try again in {seconds} s", "overloaded", retry_after=seconds)

    def _give_back(self, tenant: Tenant) -> None:
        """A place is free: the next one goes."""
        self._serving[tenant.name] -= 1
        self._serving += Counter()  # drops tenants without requests
        self._call()

    def _call(self) -> None:
        """Those go for whom there are places."""
        now = self._clock()
        while self._waiters and not self._is_full():
            waiter = self._waiters.first(self._shares)
            self._waiters.remove(waiter)
            if waiter.turn.done():
                continue
            if now > waiter.until:  # its timer has not had its turn yet: nobody begins what nobody waits for any more
                waiter.turn.set_exception(self._too_late())
                continue
            self._take(waiter.standing.tenant)
            waiter.turn.set_result(None)
        self._note()
        if self._waiters and self._look is None and self._serving.total() < self._places.count:
            self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)

    def _look_again(self) -> None:
        """Memory comes free without an end of a request, too: inferlets that no request has launched end, and exports
        are dropped."""
        self._look = None
        self._call()
