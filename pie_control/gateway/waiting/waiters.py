"""Those who wait for a place: who goes next, and who is refused where too many wait."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass

from ...tenants.tenant import ServiceClass, Standing, Tenant

PLACES = 16
"""For each step of its priority, a request stands as if it had come so many requests later."""


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
    """Says whose turn it is: the tenant that has had least for its weight. Nobody saves credit while idle."""

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

    def would_end_with(self, priority: int) -> bool:
        """Whether one of this priority that came now would go last."""
        return self._came + 1 + PLACES * priority >= self._order[-1][0]

    def oldest(self) -> int:
        """Number of the one that came first, whatever its priority."""
        return next(iter(self._places)).number

    def until(self) -> float:
        """Deadline of the one that came first."""
        return next(iter(self._places)).until

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

    def untils(self) -> dict[str, float]:
        """By tenant, the deadline of the one that has waited longest."""
        found: dict[str, float] = {}
        for (_, name), queue in self._queues.items():
            found[name] = min(queue.until(), found.get(name, queue.until()))
        return found

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

    def would_be_last(self, standing: Standing) -> bool:
        """Whether `last` would be one of this standing that came now."""
        tenant = standing.tenant
        own = standing.service_class, (self._counts[tenant.name] + 1) / tenant.weight
        if (queue := self._queues.get((own[0], tenant.name))) and not queue.would_end_with(standing.priority):
            return False
        ranks = (
            (kind, self._counts[name] / one.last().standing.tenant.weight) for (kind, name), one in self._queues.items()
        )
        return all(rank <= own for rank in ranks)
