"""What a tenant, or a key, may spend, and what it has spent lately. Pure: times are arguments, in seconds.

Theory of operation. Each has two limits on tokens a minute, which hold together:

- *In any 60 seconds* it spends no more than its budget. So an idle tenant may spend much at once, and a new request of
  one that has spent its budget is refused.
- *A token bucket* fills at the rate of the budget and holds BURST_SECONDS of it. What runs spends from it, and waits
  while it is empty. So what runs is slowed to the rate, and goes on evenly.

What a wave takes is spent when the wave is formed. A command goes if anything is left, whatever it costs, so that none
can wait for ever; what it has taken too much is missing later. Waiting ends when there are QUANTUM_SECONDS of the rate,
so that waves are not formed for single tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf

from pie_control.record import Record

MINUTE = 60.0
SLOT_SECONDS = 0.25
"""What was spent within a slot is forgotten at the same time, a minute after its end."""
BURST_SECONDS = 10.0
QUANTUM_SECONDS = 0.05
LEAST_WAIT = 0.001


class Budget(Record, frozen=True, tag=None):
    """What may be spent; None: no bound. A day is one of UTC."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None


NO_BUDGET = Budget()
DAY = 86400


def seconds_of_day_left(now: float) -> float:
    """`now`: since the epoch."""
    return DAY - now % DAY


class LastMinute:
    """What was spent in the last 60 seconds, and up to a slot before."""

    __slots__ = ("_slots", "_total")

    def __init__(self) -> None:
        self._slots: deque[list[int]] = deque()  # number of the slot, what was spent in it; oldest first
        self._total = 0

    def add(self, now: float, amount: int) -> None:
        number = int(now // SLOT_SECONDS)
        if self._slots and self._slots[-1][0] == number:
            self._slots[-1][1] += amount
        else:
            self._slots.append([number, amount])
        self._total += amount

    def total(self, now: float) -> int:
        while self._slots and _forgotten_at(self._slots[0][0]) <= now:
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
                return _forgotten_at(number)
        return inf

    def empty(self, now: float) -> float:
        """When all is forgotten, if nothing more is spent."""
        return _forgotten_at(self._slots[-1][0]) if self.total(now) and self._slots else now


def _forgotten_at(slot: int) -> float:
    return (slot + 1) * SLOT_SECONDS + MINUTE


class Spender:
    """A tenant or a key: its budget, and what it has spent. `name`: as errors call it."""

    __slots__ = ("_at", "_saved", "budget", "name", "refused", "requests", "tokens", "tokens_today")

    def __init__(self, name: str, budget: Budget = NO_BUDGET) -> None:
        self.name = name
        self.budget = budget
        self.requests = LastMinute()
        self.tokens = LastMinute()
        self.tokens_today = 0
        self.refused = 0  # requests that were beyond its budget
        self._saved = inf  # tokens in the bucket, as of `_at`; less than 0: it has taken too much
        self._at = 0.0

    def use(self, budget: Budget) -> None:
        """This is its budget from now on."""
        self.budget = budget

    @property
    def is_limited(self) -> bool:
        """Whether it has a budget of tokens."""
        return self.budget.tokens_per_minute is not None or self.budget.tokens_per_day is not None

    @property
    def of_minute(self) -> Iterator[tuple[str, LastMinute, int]]:
        """What is bounded a minute, what was spent of it, and the bound."""
        if self.budget.requests_per_minute is not None:
            yield "requests", self.requests, self.budget.requests_per_minute
        if self.budget.tokens_per_minute is not None:
            yield "tokens", self.tokens, self.budget.tokens_per_minute

    def begins_day(self, tokens: int) -> None:
        """It has spent so many tokens in the day that there is."""
        self.tokens_today = tokens

    def spend(self, tokens: int, now: float) -> None:
        """A wave takes so many tokens; less than 0: it gives them back."""
        self.tokens_today += tokens
        if self.budget.tokens_per_minute is not None:
            self._saved, self._at = self._bucket(now) - tokens, now
            self.tokens.add(now, tokens)

    def _bucket(self, now: float) -> float:
        rate = (self.budget.tokens_per_minute or 0) / MINUTE
        return min(max(1.0, BURST_SECONDS * rate), self._saved + (now - self._at) * rate)

    def refuses(self) -> None:
        """A request is beyond its budget."""
        self.refused += 1

    @property
    def is_over_today(self) -> bool:
        """Whether it may spend no more tokens before the next day."""
        return self.budget.tokens_per_day is not None and self.tokens_today >= self.budget.tokens_per_day

    def is_spent(self, now: float) -> bool:
        """Whether what runs has to wait, or to end."""
        limit = self.budget.tokens_per_minute
        if limit is not None and (self._bucket(now) < 1 or self.tokens.total(now) >= limit):
            return True
        return self.is_over_today

    def ready_at(self, now: float) -> float:
        """When what waits goes on; inf: not today."""
        if self.is_over_today:
            return inf
        limit = self.budget.tokens_per_minute
        if limit is None:
            return now
        rate = limit / MINUTE
        missing = max(1.0, QUANTUM_SECONDS * rate) - self._bucket(now)
        filled = now + max(LEAST_WAIT, missing / rate) if missing > 0 else now
        return max(filled, self.tokens.below(limit, now))
