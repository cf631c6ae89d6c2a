"""How many requests are served at a time: fewer where some are evicted, for lack of memory."""

from __future__ import annotations

CALM = 2
"""After so many ends of each place without an eviction there are more places again."""


class Places:
    """The places for requests: as many as survive an eviction. While there is none there are more again, first one,
    then twice as many each time."""

    def __init__(self, most: int) -> None:
        self.count = most
        self._most = most
        self._step = 1
        self._calm = 0  # ends since the last change

    def evicted(self, left: int) -> None:
        """A request was evicted; so many others are served."""
        self.count = max(1, min(self.count, left))
        self._step, self._calm = 1, 0

    def ended(self) -> None:
        """A request has ended while others waited."""
        self._calm += 1
        if self.count < self._most and self._calm >= CALM * self.count:
            self.count = min(self._most, self.count + self._step)
            self._step, self._calm = 2 * self._step, 0
