"""How many tokens a wave may have, so that long forwards do not hold up decodes.

Everybody in a wave waits for all of it. So while others take short steps, what long forwards add to a wave is bounded
by measured times: it takes at most STRETCH times as long as the short steps alone, or SECONDS, if that is more. A long
forward then has the better part of the worker's time, in chunks; where nobody else waits, it goes whole. Where the
worker is fast against SECONDS, nothing is bounded. Images go in layers of their tiles, which count as so many tokens as
they are worth.
"""

from __future__ import annotations

from math import inf

from ..fairness import FEW
from ..statistics import Lately, LinearFit

STRETCH = 4
"""A wave takes at most this many times as long as its short steps alone."""
SECONDS = 0.05
"""A wave may take this long in any case: a reader does not see it."""
LATELY = 8
"""Waves without a short step, after which nobody is held up by a long one."""
LEAST = FEW
"""Tokens of long forwards that a wave takes, however slow the worker is."""


class Chunks:
    """Follows what waves are made of."""

    def __init__(self) -> None:
        self._short = Lately()  # tokens of short steps in a wave that has some
        self._without = LATELY  # waves in a row that had none

    def add(self, short: int) -> None:
        """A wave is done that had so many tokens of short steps."""
        if short:
            self._short.add(short)
            self._without = 0
        else:
            self._without += 1

    def most(self, times: LinearFit) -> float:
        """Tokens that the next wave should have at most. `times`: seconds of waves over their tokens."""
        if self._without >= LATELY or not times.each:
            return inf
        short = self._short.mean
        seconds = max(STRETCH * times.at(short), SECONDS)
        return max(seconds - times.fixed, 0.0) / times.each + LEAST
