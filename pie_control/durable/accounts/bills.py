"""What is used, from the meters that count it into the state; and the days of budgets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import astuple
from itertools import chain

from ...errors import StateUnavailable
from ...tenants.budgets import DAY
from ...tenants.meters import NO_USAGE, Meters, Usage
from .usage import UsageRecord, UsageRecords, day_of


class Bills:
    """Belongs to the thread of the meters. `clock` gives seconds since the epoch."""

    def __init__(
        self,
        meters: Meters,
        records: UsageRecords | None,
        clock: Callable[[], float],
        used_keys: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """`records`: what survives the server. Then what was used before in this day counts for its budgets.
        `used_keys`: those that are valid, or whose inferlets run; others are forgotten with the day."""
        self._used_keys = used_keys
        self._meters = meters
        self._records = records
        self._clock = clock
        self._day = int(clock() // DAY)
        if records is not None:
            meters.begin_day(records.of_day(self._day))

    def write(self) -> None:
        """Writes what was used since the last time, and begins a day when it is time."""
        if self._records is not None:
            self._records.write(self._day, self._meters.changed())
        if (today := int(self._clock() // DAY)) != self._day:
            self._day = today
            if self._used_keys is not None:
                self._meters.forget_keys(self._used_keys())
            self._meters.begin_day(self._of_day(today))

    def _of_day(self, day: int) -> Mapping[tuple[str, str], Usage]:
        """What the state has of a day that begins: something, where the clock of the machine was set back."""
        with contextlib.suppress(StateUnavailable):
            if self._records is not None:
                return self._records.of_day(day)
        return {}

    def usage(self, days: int, tenant: str | None = None) -> Iterator[UsageRecord]:
        """What was used in the last days, today included, oldest first: by a tenant, or by all. Of days before today it
        is what the state has, which is read when it is iterated over: there may be much, so do that in a thread."""
        self.write()
        today = day_of(self._day).isoformat()
        now = [
            UsageRecord(today, meter.tenant, meter.key, *astuple(meter.usage))
            for meter in sorted(self._meters.all, key=lambda one: (one.tenant, one.key))
            if meter.usage != NO_USAGE and tenant in (None, meter.tenant)
        ]
        return chain(self._before(today, self._day - days + 1, tenant), now)

    def _before(self, today: str, first: int, tenant: str | None) -> Iterator[UsageRecord]:
        if self._records is not None:
            yield from (one for one in self._records.since(first, tenant) if one.day != today)
