"""How many forced tokens it pays to run together."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

RESTART = 0.004
"""Seconds, about, in which a program takes the tokens of a run, runs the forced ones, and begins a new run: on all
processors together, with what the control layer does for it."""
LEAST, MOST = 2, 1000
"""Tokens. Less than two are none, because a run does one at a time as fast."""
AT_FIRST = 6
"""The same until something was measured."""
LONGEST = 0.25
"""Seconds between two steps. What is longer was a pause."""
MEMORY = 16
"""Steps after which one counts a third."""


class Pace:
    """What a step costs for each sequence: the time from one batch to the next over the rows of the largest one lately.
    Not over its own rows: runs that are over leave small batches behind, which look costly, and if that ended more
    runs, batches would stay small."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`, in seconds: the wall's where a device computes; processor time where the processors do, because
        others use them as well."""
        self._clock = clock
        self._before = clock()
        self._seconds = RESTART / AT_FIRST
        self._rows = 1.0

    def step(self, rows: int) -> None:
        """A batch of `rows` rows has come."""
        now = self._clock()
        if now - self._before < LONGEST:
            self._seconds += (now - self._before - self._seconds) / MEMORY
            self._rows = max(rows, self._rows * (1 - 1 / (4 * MEMORY)))
        self._before = now

    @property
    def worth(self) -> int:
        """So many forced tokens cost more one by one than together, with what a program does between."""
        most = RESTART * self._rows
        return max(ceil(most / self._seconds), LEAST) if most < MOST * self._seconds else MOST
