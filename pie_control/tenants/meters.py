"""Meters: what inferlets spend, counted for their tenant and the key that launched them, within the budgets of both."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from ..errors import RateLimited
from .budgets import NO_BUDGET, Budget, Spender
from .tenant import Standing


@dataclass(slots=True)
class Usage:
    """What was spent. `prompt_tokens`: inputs of forwards, but for steps of decode runs; `generated_tokens`: those
    steps."""

    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cpu_seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.generated_tokens


class Limit(NamedTuple):
    """A budget of a minute: what is left of it, and the seconds after which all of it is there again."""

    limit: int
    remaining: int
    reset_seconds: float


class Meter:
    """What the inferlets of a tenant spend that one key has launched, or none. `has_budget`: whether there is one;
    `limited`: one of tokens; `paced`: one of processor time; `usage`: of the day."""

    __slots__ = ("has_budget", "key", "limited", "number", "paced", "spenders", "tenant", "usage")

    def __init__(self, number: int, tenant: str, key: str, spenders: tuple[Spender, ...]) -> None:
        self.number = number
        self.tenant = tenant
        self.key = key
        self.spenders = spenders
        self.usage = Usage()
        self.look()

    def look(self) -> None:
        """A budget may have changed."""
        self.has_budget = any(one.budget != NO_BUDGET for one in self.spenders)
        self.limited = any(one.is_limited for one in self.spenders)
        self.paced = any(one.budget.cpu_seconds_per_hour is not None for one in self.spenders)

    def begins_day(self, usage: Usage) -> None:
        """Takes what was spent before in the day that has begun."""
        self.usage = usage

    # ---- of waves ----

    def computes(self, tokens: int, now: float) -> None:
        """A wave takes inputs of forwards."""
        self.usage.prompt_tokens += tokens
        if self.limited:
            self._spend(tokens, now)

    def generates(self, tokens: int, now: float) -> None:
        """A wave takes steps of decode runs; less than 0: they were for nothing."""
        self.usage.generated_tokens += tokens
        if self.limited:
            self._spend(tokens, now)

    def _spend(self, tokens: int, now: float) -> None:
        for one in self.spenders:
            one.spend(tokens, now)

    def is_spent(self, now: float) -> bool:
        """Whether what runs has to wait, or to end."""
        return any(one.is_spent(now) for one in self.spenders)

    def ready_at(self, now: float) -> float:
        """When what waits goes on; inf: not today."""
        return max(one.ready_at(now) for one in self.spenders)

    @property
    def over_today(self) -> str:
        """Says whose budget of the day is spent, as a sentence; empty: nobody's."""
        for one in self.spenders:
            if one.is_over_today:
                return f"{one.name} has spent its {one.budget.tokens_per_day} tokens of today (UTC)"
        return ""

    # ---- of requests ----

    def refusal_today(self, day_left: float) -> RateLimited | None:
        """What is said if a budget of the day is spent, of which so many seconds are left."""
        if not (over := self.over_today):
            return None
        return RateLimited(f"{over}: try again tomorrow, or ask the operator for more", _seconds(day_left))

    def check(self, now: float, day_left: float) -> None:
        """Raises RateLimited if a new request is beyond a budget. `day_left`: seconds of the day that are left."""
        if not self.has_budget:
            return
        if refusal := self.refusal_today(day_left):
            next(one for one in self.spenders if one.is_over_today).refuses()
            raise refusal
        for one in self.spenders:
            for what, spent, limit in one.bounds:
                if spent.total(now) >= limit:
                    one.refuses()
                    wait = _seconds(spent.below(limit, now) - now)
                    raise RateLimited(f"{one.name} has spent its {limit} {what}: try again in {wait} s", wait)

    def limits(self, now: float) -> dict[str, Limit]:
        """The tightest budget of requests, and of tokens, where there is one."""
        found: dict[str, Limit] = {}
        for one in self.spenders:
            for what, spent, limit in one.of_minute:
                told = Limit(limit, max(0, limit - spent.total(now)), spent.empty(now) - now)
                if what not in found or told.remaining < found[what].remaining:
                    found[what] = told
        return found

    def runs(self, seconds: float, now: float) -> None:
        """Inferlets have used so much more processor time."""
        self.usage.cpu_seconds += seconds
        for one in self.spenders:
            one.runs(seconds, now)

    def turns_at(self, now: float, *, paused: bool) -> float:
        """When its inferlets may have turns. `paused`: they have none now."""
        return max(one.turns_at(now, paused=paused) for one in self.spenders)

    def requests(self, now: float) -> None:
        """A request of a client is taken."""
        self.usage.requests += 1
        for one in self.spenders:
            if one.budget.requests_per_minute is not None:
                one.requests.add(now, 1)


def _seconds(wait: float) -> int:
    return max(1, ceil(wait))


NO_USAGE = Usage()
NOTHING: Mapping[tuple[str, str], Usage] = {}


class Meters:
    """All meters of a server. Belongs to one thread."""

    def __init__(self) -> None:
        self.all: list[Meter] = []
        """By their numbers."""
        self.limited = False
        """Whether any is."""
        self._told: dict[int, Usage] = {}  # by the number of the meter
        self._found: dict[tuple[str, str], Meter] = {}
        self._tenants: dict[str, Spender] = {}
        self._keys: dict[str, Spender] = {}
        self._free: list[int] = []  # numbers of meters that are forgotten

    def of(self, standing: Standing) -> Meter:
        """What counts for an inferlet."""
        return self._meter(standing.tenant.name, standing.key)

    def _meter(self, tenant: str, key: str) -> Meter:
        if found := self._found.get((tenant, key)):
            return found
        spenders = [self._tenant(tenant)]
        if key:
            spenders.append(self._key(key))
        if self._free:
            number = self._free.pop()
            meter = self.all[number] = Meter(number, tenant, key, tuple(spenders))
        else:
            meter = Meter(len(self.all), tenant, key, tuple(spenders))
            self.all.append(meter)
        self._found[tenant, key] = meter
        self.limited |= meter.limited
        return meter

    def _tenant(self, name: str) -> Spender:
        return self._tenants.setdefault(name, Spender(f"tenant {name}"))

    def _key(self, key: str) -> Spender:
        return self._keys.setdefault(key, Spender(f"key {key}"))

    def use(self, tenants: Mapping[str, Budget]) -> None:
        """These are the budgets of tenants from now on; others have none."""
        for name in {*tenants, *self._tenants}:
            self._tenant(name).use(tenants.get(name, Budget()))
        self._look()

    def use_key(self, key: str, budget: Budget) -> None:
        """This is the budget of a key from now on."""
        if self._key(key).budget != budget:
            self._key(key).use(budget)
            self._look()

    @property
    def budgets(self) -> dict[str, Spender]:
        """The tenants that have a budget, by name."""
        return {name: one for name, one in self._tenants.items() if one.budget != NO_BUDGET}

    def changed(self) -> list[tuple[str, str, Usage]]:
        """What was used in this day, by tenant and key, where it is not what was told last."""
        found = []
        for meter in self.all:
            if meter.usage != self._told.get(meter.number, NO_USAGE):
                self._told[meter.number] = replace(meter.usage)
                found.append((meter.tenant, meter.key, meter.usage))
        return found

    def forget_keys(self, used: Collection[str]) -> None:
        """Drops what is known of keys that are none of these. Their inferlets have ended, and what they have spent is
        written."""
        for (tenant, key), meter in list(self._found.items()):
            if key and key not in used:
                del self._found[tenant, key]
                self._told.pop(meter.number, None)
                self.all[meter.number] = Meter(meter.number, "", "", ())
                self._free.append(meter.number)
        self._keys = {key: one for key, one in self._keys.items() if key in used}

    def begin_day(self, spent: Mapping[tuple[str, str], Usage] = NOTHING) -> None:
        """A day begins, in which that was spent by tenant and key."""
        self._told.clear()
        for meter in self.all:
            meter.begins_day(Usage())
        for (tenant, key), usage in spent.items():
            self._meter(tenant, key).begins_day(usage)
        self._look()

    def _look(self) -> None:
        for spender in (*self._tenants.values(), *self._keys.values()):
            spender.begins_day(0)
        for meter in self.all:
            meter.look()
            for spender in meter.spenders:
                spender.begins_day(spender.tokens_today + meter.usage.tokens)
        self.limited = any(meter.limited for meter in self.all)
