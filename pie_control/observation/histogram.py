"""A histogram with fixed bounds, cheap enough for each token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate


class Histogram:
    """Counts of values, by the smallest bound that is not below them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` grow; what is above the last one is counted, too."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Adds a value, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound, with how many values are not above it; the last bound is infinite."""
        return zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True)


SHORT_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 40.0),
)
"""Bounds for what lasts as long as a token."""
FIRST_SECONDS = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
"""Bounds for what lasts as long as a prompt."""
LONG_SECONDS = (
    *(0.025, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Bounds for what lasts as long as an inferlet."""
SIZES = tuple(float(1 << power) for power in range(15))
"""Bounds for numbers of commands in a batch, and of tokens in a wave."""
LENGTHS = tuple(float(one * 10**power) for power in range(6) for one in (1, 2, 5))
"""Bounds for texts, in tokens."""
