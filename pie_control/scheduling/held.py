"""Queues that are ready, and whose tenant or key has spent its budget: they wait until there is more of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from pie_control.ids import Owner
from pie_control.tenants.meters import Meter

from .account import CommandQueue


class Held:
    """The queues, in the order in which they were found, by what counts for them."""

    def __init__(self) -> None:
        self._queues: dict[Meter, dict[CommandQueue, None]] = {}
        self._owners: frozenset[Owner] | None = None  # unless they have changed since they were asked for
        self._new: list[Owner] = []

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __contains__(self, queue: CommandQueue) -> bool:
        return queue in self._queues.get(queue.account.meter, ())

    @property
    def owners(self) -> frozenset[Owner]:
        """The owners of the queues that are held."""
        if self._owners is None:
            self._owners = frozenset(one.account.owner for queues in self._queues.values() for one in queues)
        return self._owners

    def add(self, queue: CommandQueue) -> None:
        self._queues.setdefault(queue.account.meter, {})[queue] = None
        self._owners = None
        self._new.append(queue.account.owner)

    def take_new(self) -> Sequence[Owner]:
        """The owners of queues that have come since it was asked last."""
        new, self._new = self._new, []
        return new

    def discard(self, queue: CommandQueue) -> None:
        meter = queue.account.meter
        if queue in self:
            self._owners = None
            del self._queues[meter][queue]
            if not self._queues[meter]:
                del self._queues[meter]

    def take(self, now: float) -> Iterator[CommandQueue]:
        """Those that go on, which it forgets."""
        for meter in [one for one in self._queues if one.ready_at(now) <= now]:
            self._owners = None
            yield from self._queues.pop(meter)

    def next(self, now: float) -> float | None:
        """When some go on; None: not before something changes."""
        first = min((meter.ready_at(now) for meter in self._queues), default=inf)
        return None if first == inf else first

    def over_today(self) -> Iterator[tuple[CommandQueue, str]]:
        """Those whose budget of the day is spent, with a sentence that says so."""
        for meter, queues in list(self._queues.items()):
            if reason := meter.over_today:
                yield from ((queue, reason) for queue in list(queues))
