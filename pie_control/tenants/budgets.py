"""What a tenant, or a key, may spend, and what it has spent lately. Pure: times are arguments, in seconds.

Requests are looked at when a new request comes: it is refused if its tenant has spent its budget of the last minute, or
of processor time of the last hour. Tokens and processor time are what runs spends: it is slowed to the rate of the
budget, and goes on evenly (allowance.py).

What a wave takes is spent when the wave is formed. A command goes if anything is left, whatever it costs, so that none
can wait for ever. Of processor time hosts tell what was used; while too much was, its inferlets have no turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from pie_control.record import Record

from .allowance import HOUR, MINUTE, Allowance, Recent


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


class Spender:
    """A tenant or a key: its budget, and what it has spent. `name`: as errors call it."""

    __slots__ = ("_cpu", "_tokens", "budget", "name", "refused", "requests", "tokens_today")

    def __init__(self, name: str, budget: Budget = NO_BUDGET) -> None:
        self.name = name
        self.requests = Recent(0)
        self.tokens_today = 0
        self.refused = 0  # requests that were beyond its budget
        self._tokens = Allowance(0, MINUTE, least=1.0)
        self._cpu = Allowance(0.0, HOUR)
        self.use(budget)

    def use(self, budget: Budget) -> None:
        """This is its budget from now on."""
        self.budget = budget
        self._tokens.use(budget.tokens_per_minute)
        self._cpu.use(budget.cpu_seconds_per_hour)

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
            yield "tokens", self._tokens.spent, self.budget.tokens_per_minute

    @property
    def bounds(self) -> Iterator[tuple[str, Recent[int] | Recent[float], int]]:
        """What is bounded a minute or an hour, what was spent of it, and the bound."""
        for what, spent, limit in self.of_minute:
            yield f"{what} a minute", spent, limit
        if self.budget.cpu_seconds_per_hour is not None:
            yield "processor seconds an hour", self._cpu.spent, self.budget.cpu_seconds_per_hour

    def begins_day(self, tokens: int) -> None:
        """It has spent so many tokens in the day that there is."""
        self.tokens_today = tokens

    def spend(self, tokens: int, now: float) -> None:
        """A wave takes so many tokens; less than 0: it gives them back."""
        self.tokens_today += tokens
        self._tokens.spend(tokens, now)

    def refuses(self) -> None:
        """A request is beyond its budget."""
        self.refused += 1

    @property
    def is_over_today(self) -> bool:
        """Whether it may spend no more tokens before the next day."""
        return self.budget.tokens_per_day is not None and self.tokens_today >= self.budget.tokens_per_day

    def is_spent(self, now: float) -> bool:
        """Whether what runs has to wait, or to end."""
        return self.is_over_today or self._tokens.is_spent(now)

    def ready_at(self, now: float) -> float:
        """When what waits goes on; inf: not today."""
        return inf if self.is_over_today else self._tokens.ready_at(now)

    # ---- processor time ----

    def runs(self, seconds: float, now: float) -> None:
        """Its inferlets have used so much more processor time."""
        self._cpu.spend(seconds, now)

    def turns_at(self, now: float, *, paused: bool) -> float:
        """When its inferlets may have turns. `paused`: they have none now."""
        return self._cpu.ready_at(now) if paused or self._cpu.is_spent(now) else now
