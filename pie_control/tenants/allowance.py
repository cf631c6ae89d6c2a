"""How much of a budget of a minute or an hour what runs may spend, and when. Pure: times are arguments, in seconds.

Theory of operation. Two limits hold together:

- *In any span* no more is spent than the budget.
- *A bucket* holds BURST of the budget, for who was idle, and fills at a rate. What runs spends from it, and waits
  while it is empty. So what runs goes on evenly.

If the rate were always that of the budget, then whoever spends a burst and goes on would reach the first limit before
the span is over, and stand still until the burst is forgotten. So the rate is the highest at which it may go on for a
span without that: a little less than that of the budget for a span, and the same from then on.

What is spent may be more than there was; what was too much is missing later. Waiting ends when there are
QUANTUM_SECONDS of the rate, so that who waits does not wait again at once.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Generic, TypeVar

MINUTE, HOUR = 60.0, 3600.0
SLOTS = 240
"""A span has so many slots. What was spent within one is forgotten at the same time, a span after its end."""
BURST = 1 / 6
QUANTUM_SECONDS = 0.05
LEAST_WAIT = 0.001
N = TypeVar("N", int, float)


class Recent(Generic[N]):
    """What was spent in the last span, a minute or another time, and up to a slot before."""

    __slots__ = ("_slot", "_slots", "_span", "_total")

    def __init__(self, zero: N, span: float = MINUTE) -> None:
        self._span = span
        self._slot = span / SLOTS
        self._slots: deque[tuple[int, N]] = deque()  # number of the slot, what was spent in it; oldest first
        self._total: N = zero

    def add(self, now: float, amount: N) -> None:
        number = int(now // self._slot)
        if self._slots and self._slots[-1][0] == number:
            self._slots[-1] = number, self._slots[-1][1] + amount
        else:
            self._slots.append((number, amount))
        self._total += amount

    def total(self, now: float) -> N:
        while self._slots and self._forgotten_at(self._slots[0][0]) <= now:
            self._total -= self._slots.popleft()[1]
        return self._total

    def below(self, limit: int, now: float) -> float:
        """When the total is below a limit, if nothing more is spent."""
        total = self.total(now)
        if total < limit:
            return now
        for number, amount in self._slots:
            total -= amount
            if total < limit:
                return self._forgotten_at(number)
        return inf

    def empty(self, now: float) -> float:
        """When all is forgotten, if nothing more is spent."""
        return self._forgotten_at(self._slots[-1][0]) if self.total(now) and self._slots else now

    def even_rate(self, limit: int, now: float) -> float:
        """The highest rate a second at which the total stays within a limit for a span."""
        room: float = limit - self.total(now)
        found = limit / self._span
        for number, amount in self._slots:
            found = min(found, room / (self._forgotten_at(number) - now))
            room += amount
        return found

    def _forgotten_at(self, slot: int) -> float:
        return (slot + 1) * self._slot + self._span


class Allowance(Generic[N]):
    """What may be spent in a span, if anything bounds it, and what was. `least`: what must be there to go on."""

    __slots__ = ("_at", "_least", "_left", "_looks_at", "_rate", "_span", "limit", "spent")

    def __init__(self, zero: N, span: float, least: float = 0.0) -> None:
        self.limit: int | None = None
        self.spent: Recent[N] = Recent(zero, span)
        self._span = span
        self._least = least
        self._left: float = inf  # in the bucket, as of `_at`; below 0: too much was taken
        self._at = 0.0
        self._rate = 0.0
        self._looks_at = 0.0  # when the rate is looked at again

    def use(self, limit: int | None) -> None:
        """This bounds a span from now on."""
        if limit != self.limit:
            self.limit, self._looks_at = limit, 0.0

    def spend(self, amount: N, now: float) -> None:
        """So much is spent; less than 0: it is given back."""
        if self.limit is not None:
            self._left = self._filled(self.limit, now) - amount
            self.spent.add(now, amount)

    def is_spent(self, now: float) -> bool:
        """Whether what runs has to wait."""
        limit = self.limit
        return limit is not None and (self._filled(limit, now) < self._least or self.spent.total(now) >= limit)

    def ready_at(self, now: float) -> float:
        """When what waits goes on."""
        if self.limit is None:
            return now
        missing = -self._filled(self.limit, now) + max(self._least, QUANTUM_SECONDS * self._rate)
        filled = now + max(LEAST_WAIT, missing / self._rate) if missing > 0 else now
        return max(filled, self.spent.below(self.limit, now))

    def _filled(self, limit: int, now: float) -> float:
        """What is left in the bucket."""
        self._left = min(max(self._least, BURST * limit), self._left + (now - self._at) * self._rate)
        self._at = now
        if now >= self._looks_at:
            self._rate = max(self.spent.even_rate(limit, now), (1 - BURST) * limit / self._span)
            self._looks_at = now + self._span / SLOTS
        return self._left
