"""Says whose inferlets have no turns for a while, since a budget of processor time is spent. Pure."""

from __future__ import annotations

from math import inf

from .meters import Meters

Payer = tuple[str, str]
"""A tenant, and the key that has launched; "": none."""
LOOK_SECONDS = 0.05
"""Between what inferlets have used and the look at it: all that hosts tell meanwhile is looked at together."""
LONGEST_SECONDS = 0.25
"""Between looks while some are paused: budgets may change."""


class Pauses:
    """Times are in seconds of the clock of the meters."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self.paused: dict[Payer, float] = {}
        """Until when."""

    def look(self, now: float) -> dict[Payer, bool]:
        """What has changed: who is paused from now on, and who goes on (False)."""
        found: dict[Payer, float] = {}
        for meter in self._meters.all:
            payer = meter.tenant, meter.key
            if meter.paced and (until := meter.turns_at(now, paused=payer in self.paused)) > now:
                found[payer] = until
        before, self.paused = self.paused, found
        return {payer: payer in found for payer in before.keys() ^ found.keys()}

    def seconds(self, now: float) -> float | None:
        """Until the next look; None: nobody is paused."""
        first = min(self.paused.values(), default=inf)
        return min(LONGEST_SECONDS, max(0.0, first - now)) if self.paused else None
