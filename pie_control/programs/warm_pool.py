"""How many Python guests wait for a launch: as many as launches came together lately, between two bounds.

**Pure.** A burst of launches empties the pool, and those that find nobody there take several times as long. So the pool
of a host follows demand: it grows to the most guests that were *missing* at a time, which is what a burst has taken and
nobody has made again yet. As nothing else is counted, a pool of this size would have served the whole burst, whether
all came at one moment or faster than guests are made. What came is forgotten after some quiet minutes. A host to which
no launch comes keeps only a few.
"""

from __future__ import annotations

from ..record import Record

QUIET_SECONDS = 300.0
"""A burst is remembered for as long, and for twice as long at most."""
REST_SECONDS = 60.0
"""After so long without a launch, a host keeps only as many as `RESTING`."""
RESTING = 8
WARM_BYTES = 1_700_000
"""Memory of a Python guest that waits (measured: 1.6 MB; 3.1 for the few that have rehearsed)."""
SHARE_OF_MEMORY = 8
"""Guests that wait beyond the least take one part in so many of the memory of a host."""


class WarmPool(Record, frozen=True):
    """How many Python guests wait on one host: `least` while launches come, `most` after bursts of them."""

    least: int = 0
    most: int = 0


def part_of(hosts: int, least: int, launches: int, host_bytes: int) -> WarmPool:
    """The pool of one of some hosts, if `least` wait on all of them, each may hold `host_bytes` for guests (0: no
    bound), and no more than `launches` inferlets run at a time. None wait at all if `least` is 0."""
    if not least:
        return WarmPool()
    part = -(-least // hosts)
    most = -(-launches // hosts)
    if host_bytes:
        most = min(most, host_bytes // SHARE_OF_MEMORY // WARM_BYTES)
    return WarmPool(part, max(part, most))


class Demand:
    """How many shall wait now. Times are seconds, and never go back."""

    def __init__(self, pool: WarmPool) -> None:
        self._pool = pool
        self._last_launch: float | None = None  # or when the host began
        self._missing = 0  # taken and not made again
        self._peak = 0  # of it in this period
        self._earlier = 0  # of it in the period before
        self._ends = QUIET_SECONDS  # of this period

    def taken(self, now: float) -> None:
        """A launch has come, whether or not a guest waited for it."""
        self._pass(now)
        self._last_launch = now
        self._missing = min(self._missing + 1, self._pool.most)
        self._peak = max(self._peak, self._missing)

    def made(self) -> None:
        """A further guest waits."""
        self._missing = max(0, self._missing - 1)

    def filled(self) -> None:
        """The pool is full, so none is missing, even if some that were taken were too many."""
        self._missing = 0

    def wanted(self, now: float) -> int:
        """How many shall wait."""
        self._pass(now)
        if self._last_launch is None:
            self._last_launch = now
        if now - self._last_launch >= REST_SECONDS:
            return min(self._pool.least, RESTING)
        return max(self._pool.least, self._peak, self._earlier)

    def _pass(self, now: float) -> None:
        if now >= self._ends:
            self._earlier = self._peak if now < self._ends + QUIET_SECONDS else 0
            self._peak = self._missing
            self._ends = now + QUIET_SECONDS
