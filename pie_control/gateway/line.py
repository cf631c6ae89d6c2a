"""The line before launches: a bounded number of requests is served at a time, and a bounded number waits."""

from __future__ import annotations

import asyncio
import contextlib
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from ..errors import TooManyRequests
from ..tenants.tenant import ServiceClass, Standing, Tenant
from .refusal import Refused

SMOOTHING = 0.1
"""Weight of the newest interval between two requests that ended, in the mean of them."""
PLACES = 16
"""For each step of its priority, a request stands as if it had come so many requests later."""


@dataclass(frozen=True, slots=True)
class LineLimits:
    """`serving`: requests that are served at a time; `waiting`: those that wait for that, each `wait_seconds` at
    most."""

    serving: int
    waiting: int
    wait_seconds: float


@dataclass(eq=False, slots=True)
class Waiter:
    """A request in the line. `turn` is done when it goes, or is refused; `until`: its deadline; `number`: how many came
    before it."""

    standing: Standing
    turn: asyncio.Future[None]
    until: float
    number: int

    @property
    def has_turn(self) -> bool:
        """Whether it goes."""
        return self.turn.done() and not self.turn.cancelled() and self.turn.exception() is None


class Shares:
    """Whose turn it is: the tenant that has had least for its weight goes first. Nobody saves credit while idle."""

    def __init__(self) -> None:
        self._now = 0.0  # in requests of a tenant of weight 1
        self._next: dict[str, float] = {}  # when the next request of a tenant is due

    def due(self, tenant: str) -> float:
        """When the next request of a tenant is due."""
        return max(self._now, self._next.get(tenant, 0.0))

    def goes(self, tenant: Tenant) -> None:
        """A request of a tenant goes."""
        self._now = max(self._now, self._next.get(tenant.name, 0.0))
        self._next = {name: due for name, due in self._next.items() if due > self._now}
        self._next[tenant.name] = self._now + 1 / tenant.weight


class Queue:
    """The waiters of one class and tenant. Their priorities move their places, by PLACES a step. So fewer later ones
    than that pass a waiter for each step, and nobody starves."""

    def __init__(self) -> None:
        self._places: dict[Waiter, int] = {}  # as they came
        self._order: list[tuple[int, int, Waiter]] = []  # (place, number, waiter), sorted
        self._came = 0

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, waiter: Waiter) -> None:
        self._came += 1
        self._places[waiter] = place = self._came + PLACES * waiter.standing.priority
        insort(self._order, (place, waiter.number, waiter))

    def remove(self, waiter: Waiter) -> None:
        del self._order[bisect_left(self._order, (self._places.pop(waiter), waiter.number))]

    def first(self) -> Waiter:
        """Who goes next."""
        return self._order[0][2]

    def last(self) -> Waiter:
        """Who goes last."""
        return self._order[-1][2]

    def oldest(self) -> int:
        """Number of the one that came first, whatever its priority."""
        return next(iter(self._places)).number

    def newest(self) -> int:
        """Number of the one that came last, whatever its priority."""
        return next(reversed(self._places)).number


class Waiters:
    """Those who wait. What it does takes as long with a thousand of them as with one, for so many tenants."""

    def __init__(self) -> None:
        self._queues: dict[tuple[ServiceClass, str], Queue] = {}
        self._counts: Counter[str] = Counter()  # by tenant

    def __len__(self) -> int:
        return self._counts.total()

    def of(self, tenant: str) -> int:
        """How many of a tenant wait."""
        return self._counts[tenant]

    def add(self, waiter: Waiter) -> None:
        name = waiter.standing.tenant.name
        self._queues.setdefault((waiter.standing.service_class, name), Queue()).add(waiter)
        self._counts[name] += 1

    def remove(self, waiter: Waiter) -> None:
        """Idempotent."""
        name = waiter.standing.tenant.name
        key = (waiter.standing.service_class, name)
        queue = self._queues.get(key)
        if queue is None or waiter not in queue:
            return
        queue.remove(waiter)
        if not len(queue):
            del self._queues[key]
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]

    def first(self, shares: Shares) -> Waiter:
        """Who goes next: interactive requests before batch; then those of the tenant that is due first; then of the one
        whose first came first; then by priority, and who came first."""

        def rank(key: tuple[ServiceClass, str]) -> tuple[ServiceClass, float, int]:
            return key[0], shares.due(key[1]), self._queues[key].oldest()

        return self._queues[min(self._queues, key=rank)].first()

    def last(self) -> Waiter:
        """Who is refused where too many wait: batch before interactive; then the tenant of whom most wait for its
        weight; then the one whose last came last; then who would go last."""

        def rank(key: tuple[ServiceClass, str]) -> tuple[ServiceClass, float, int]:
            queue = self._queues[key]
            return key[0], self._counts[key[1]] / queue.last().standing.tenant.weight, queue.newest()

        return self._queues[max(self._queues, key=rank)].last()


class WaitingLine:
    """Belongs to one event loop. `clock` is in seconds."""

    def __init__(self, limits: LineLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._serving: Counter[str] = Counter()  # by tenant
        self._waiters = Waiters()
        self._came = 0  # that had to wait
        self._shares = Shares()
        self._interval = 0.0  # mean seconds between two ends while others wait
        self._ended: float | None = None  # when the last one ended, if others have waited ever since

    def counts(self) -> dict[str, int]:
        """Requests that are served, and those that wait."""
        return {"served": self._serving.total(), "waiting": len(self._waiters)}

    @contextlib.asynccontextmanager
    async def place(self, standing: Standing) -> AsyncIterator[None]:
        """Waits for a place, which the block has until it ends. Raises Refused, with the seconds after which it makes
        sense to try again, if too many wait, or if it has waited too long; TooManyRequests if the tenant has as many
        requests as it may have inferlets."""
        tenant = standing.tenant
        self._check_tenant(standing)
        if self._waiters or self._serving.total() >= self._limits.serving:
            await self._wait(standing)
        else:
            self._take(tenant)
        try:
            yield
        finally:
            self._serving[tenant.name] -= 1
            self._serving += Counter()  # drops tenants without requests
            self._end()

    def _take(self, tenant: Tenant) -> None:
        self._serving[tenant.name] += 1
        self._shares.goes(tenant)

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
        while self._waiters and self._is_too_long():
            self._refuse(self._waiters.last(), "too many requests wait")
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                await waiter.turn
        except TimeoutError:
            if not waiter.has_turn:
                raise self._too_late() from None
        except BaseException:
            if waiter.has_turn:
                self._serving[standing.tenant.name] -= 1  # its turn came as it left
                self._end()
            raise
        finally:
            self._waiters.remove(waiter)

    def _is_too_long(self) -> bool:
        waiting, limits = len(self._waiters), self._limits
        return waiting > limits.waiting or self._expected(waiting) > limits.wait_seconds

    def _expected(self, waiting: int) -> float:
        """Seconds after which so many will have gone, as far as the last ends say."""
        return waiting * self._interval

    def _refuse(self, waiter: Waiter, reason: str) -> None:
        self._waiters.remove(waiter)
        if not waiter.turn.done():
            waiter.turn.set_exception(self._refusal(reason))

    def _too_late(self) -> Refused:
        return self._refusal(f"no place came free in {self._limits.wait_seconds:g} s")

    def _refusal(self, reason: str) -> Refused:
        seconds = max(1, math.ceil(self._expected(len(self._waiters))))
        return Refused(503, f"{reason}: try again in {seconds} s", "overloaded", retry_after=seconds)

    def _end(self) -> None:
        """A place is free: the next one goes."""
        now = self._clock()
        if self._waiters:
            if self._ended is not None:
                passed = now - self._ended
                self._interval += (SMOOTHING if self._interval else 1.0) * (passed - self._interval)
            self._ended = now
        else:
            self._ended, self._interval = None, 0.0
        while self._waiters and self._serving.total() < self._limits.serving:
            waiter = self._waiters.first(self._shares)
            self._waiters.remove(waiter)
            if waiter.turn.done():
                continue
            if now > waiter.until:  # its timer has not had its turn yet: nobody begins what nobody waits for any more
                waiter.turn.set_exception(self._too_late())
                continue
            self._take(waiter.standing.tenant)
            waiter.turn.set_result(None)
