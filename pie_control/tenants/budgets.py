"""What a tenant, or a key, may spend, and what it has spent lately. Pure: times are arguments, in seconds.

Theory of operation. Requests are looked at when a new request comes. Of tokens, each has two limits a minute, which
hold together:

- *In any 60 seconds* it spends no more than its budget. So an idle tenant may spend much at once, and a new request of
  one that has spent its budget is refused.
- *A token bucket* fills at the rate of the budget and holds BURST_SECONDS of it. What runs spends from it, and waits
  while it is empty. So what runs is slowed to the rate, and goes on evenly.

What a wave takes is spent when the wave is formed. A command goes if anything is left, whatever it costs, so that none
can wait for ever; what it has taken too much is missing later. Waiting ends when there are QUANTUM_SECONDS of the rate,
so that waves are not formed for single tokens.

Of processor time, a new request is refused whose tenant has spent its budget within an hour. What runs spends from a
bucket as well, which holds all that may be spent in an hour; while that is empty, its inferlets have no turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf
from typing import Generic, TypeVar

from pie_control.record import Record

MINUTE, HOUR = 60.0, 3600.0
SLOTS = 240
"""Of a minute or an hour. What was spent within one is forgotten at the same time, that long after its end."""
N = TypeVar("N", int, float)
BURST_SECONDS = 10.0
QUANTUM_SECONDS = 0.05
LEAST_WAIT = 0.001


class Budget(Record, frozen=True, tag=None):
    """What may be spent; None: no bound. A day is one of UTC."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    cpu_seconds_per_hour: int | None = None


NO_BUDGET = Budget()
DAY = 86400


def seconds_of_day_left(now: float) -> float:
    """`now`: since the epoch."""
    return DAY - now % DAY


class Recent(Generic[N]):
    """What was spent in the last minute, or another time, and up to a slot before."""

    __slots__ = ("_seconds", "_slot", "_slots", "_total")

    def __init__(self, zero: N, seconds: float = MINUTE) -> None:
        self._seconds = seconds
        self._slot = seconds / SLOTS
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

    def _forgotten_at(self, slot: int) -> float:
        return (slot + 1) * self._slot + self._seconds


class Bucket:
    """What is left of what fills at a `rate` a second, up to `most`; less than 0: too much was taken."""

    __slots__ = ("_at", "_left")

    def __init__(self) -> None:
        self._left = inf  # as of `_at`
        self._at = 0.0

    def left(self, now: float, rate: float, most: float) -> float:
        return min(most, self._left + (now - self._at) * rate)

    def take(self, amount: float, now: float, rate: float, most: float) -> None:
        self._left, self._at = self.left(now, rate, most) - amount, now


class Spender:
    """A tenant or a key: its budget, and what it has spent. `name`: as errors call it."""

    __slots__ = ("_cpu", "_saved", "budget", "cpu_seconds", "name", "refused", "requests", "tokens", "tokens_today")

    def __init__(self, name: str, budget: Budget = NO_BUDGET) -> None:
        self.name = name
        self.budget = budget
        self.requests = Recent(0)
        self.tokens = Recent(0)
        self.cpu_seconds = Recent(0.0, HOUR)
        self.tokens_today = 0
        self.refused = 0  # requests that were beyond its budget
        self._saved = Bucket()  # tokens
        self._cpu = Bucket()  # processor seconds

    def use(self, budget: Budget) -> None:
        """This is its budget from now on."""
        self.budget = budget

    @property
    def is_limited(self) -> bool:
        """Whether it has a budget of tokens."""
        return self.budget.tokens_per_minute is not None or self.budget.tokens_per_day is not None

    @property
    def of_minute(self) -> Iterator[tuple[str, Recent[int], int]]:
        """What is bounded a minute, what was spent of it, and the bound."""
        if self.budget.requests_per_minute is not None:
            yield "requests", self.requests, self.budget.requests_per_minute
        if self.budget.tokens_per_minute is not None:
            yield "tokens", self.tokens, self.budget.tokens_per_minute

    @property
    def bounds(self) -> Iterator[tuple[str, Recent[int] | Recent[float], int]]:
        """What is bounded a minute or an hour, what was spent of it, and the bound."""
        for what, spent, limit in self.of_minute:
            yield f"{what} a minute", spent, limit
        if self.budget.cpu_seconds_per_hour is not None:
            yield "processor seconds an hour", self.cpu_seconds, self.budget.cpu_seconds_per_hour

    def begins_day(self, tokens: int) -> None:
        """It has spent so many tokens in the day that there is."""
        self.tokens_today = tokens

    def spend(self, tokens: int, now: float) -> None:
        """A wave takes so many tokens; less than 0: it gives them back."""
        self.tokens_today += tokens
        if self.budget.tokens_per_minute is not None:
            self._saved.take(tokens, now, *self._rate_of_tokens)
            self.tokens.add(now, tokens)

    @property
    def _rate_of_tokens(self) -> tuple[float, float]:
        rate = (self.budget.tokens_per_minute or 0) / MINUTE
        return rate, max(1.0, BURST_SECONDS * rate)

    def _bucket(self, now: float) -> float:
        return self._saved.left(now, *self._rate_of_tokens)

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

    # ---- processor time ----

    def runs(self, seconds: float, now: float) -> None:
        """Its inferlets have used so much more processor time."""
        if (limit := self.budget.cpu_seconds_per_hour) is not None:
            self.cpu_seconds.add(now, seconds)
            self._cpu.take(seconds, now, limit / HOUR, limit)

    def turns_at(self, now: float, *, paused: bool) -> float:
        """When its inferlets may have turns. `paused`: they have none now."""
        limit = self.budget.cpu_seconds_per_hour
        if limit is None:
            return now
        rate = limit / HOUR
        missing = (QUANTUM_SECONDS * rate if paused else 0.0) - self._cpu.left(now, rate, limit)
        if missing < 0 or (paused and not missing):
            return now
        return now + max(LEAST_WAIT, missing / rate) if rate else inf
