"""The line before launches: a bounded number of requests is served at a time, and a bounded number waits."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from ..errors import TooManyRequests
from ..tenants.tenant import Standing, Tenant
from .refusal import Refused

SMOOTHING = 0.1
"""Weight of the newest interval between two requests that ended, in the mean of them."""


@dataclass(frozen=True, slots=True)
class LineLimits:
    """`serving`: requests that are served at a time; `waiting`: those that wait for that, each `wait_seconds` at
    most."""

    serving: int
    waiting: int
    wait_seconds: float


@dataclass(eq=False, slots=True)
class Waiter:
    """A request in the line. `turn` is done when it goes, or is refused."""

    standing: Standing
    turn: asyncio.Future[None]

    @property
    def has_turn(self) -> bool:
        """Whether it goes."""
        return self.turn.done() and not self.turn.cancelled() and self.turn.exception() is None


class Shares:
    """Whose turn it is: the tenant that has had least for its weight goes first. Nobody saves credit while idle."""

    def __init__(self) -> None:
        self._now = 0.0  # in requests of a tenant of weight 1
        self._next: dict[str, float] = {}  # when the next request of a tenant is due

    def due(self, waiter: Waiter) -> tuple[int, float]:
        """Interactive requests go before batch, then those that are due first."""
        standing = waiter.standing
        return standing.service_class, max(self._now, self._next.get(standing.tenant.name, 0.0))

    def goes(self, tenant: Tenant) -> None:
        """A request of a tenant goes."""
        self._now = max(self._now, self._next.get(tenant.name, 0.0))
        self._next = {name: due for name, due in self._next.items() if due > self._now}
        self._next[tenant.name] = self._now + 1 / tenant.weight


def last_of(waiters: Sequence[Waiter]) -> Waiter:
    """Who is refused where too many wait: batch before interactive; then the tenant of whom most wait for its weight;
    then who came last."""
    waiting = Counter(waiter.standing.tenant.name for waiter in waiters)

    def rank(place: int) -> tuple[int, float, int]:
        standing = waiters[place].standing
        return standing.service_class, waiting[standing.tenant.name] / standing.tenant.weight, place

    return waiters[max(range(len(waiters)), key=rank)]


class WaitingLine:
    """Belongs to one event loop. `clock` is in seconds."""

    def __init__(self, limits: LineLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._serving: Counter[str] = Counter()  # by tenant
        self._waiters: list[Waiter] = []
        self._shares = Shares()
        self._interval = 0.0  # mean seconds between two ends while others wait
        self._ended: float | None = None  # when the last one ended, if others have waited ever since

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
        if most is None:
            return
        waiting = sum(waiter.standing.tenant.name == name for waiter in self._waiters)
        if self._serving[name] + waiting >= most:
            raise TooManyRequests(
                f"{most} requests of tenant {name} are served or wait, and it may have no more inferlets: try again "
                "when some have been answered"
            )

    async def _wait(self, standing: Standing) -> None:
        waiter = Waiter(standing, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        while self._waiters and self._is_too_long():
            self._refuse(last_of(self._waiters), "too many requests wait")
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                await waiter.turn
        except TimeoutError:
            if not waiter.has_turn:
                raise self._refusal(f"no place came free in {self._limits.wait_seconds:g} s") from None
        except BaseException:
            if waiter.has_turn:
                self._serving[standing.tenant.name] -= 1  # its turn came as it left
                self._end()
            raise
        finally:
            with contextlib.suppress(ValueError):
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
            waiter = min(self._waiters, key=self._shares.due)
            self._waiters.remove(waiter)
            if not waiter.turn.done():
                self._take(waiter.standing.tenant)
                waiter.turn.set_result(None)
