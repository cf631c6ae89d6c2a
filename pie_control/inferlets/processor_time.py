"""The processor time of an inferlet."""

from __future__ import annotations


class ProcessorTime:
    """The processor time of one inferlet, against a budget that comes back while it waits.

    An inferlet may use `limit` seconds at a stretch, and gets `refill` seconds back for each second in which it waits.
    So one that computes all the time ends, whoever else runs, and one that mostly waits may live for ever.
    """

    __slots__ = ("_limit", "_refill", "_waits_since", "spent", "used")

    def __init__(self, limit: float, refill: float) -> None:
        self._limit = limit
        self._refill = refill
        self._waits_since: float | None = None
        self.used = 0.0  # seconds in all
        self.spent = 0.0  # seconds of the budget

    @property
    def is_exceeded(self) -> bool:
        return self.spent > self._limit

    def turn_begins(self, now: float) -> None:
        """`now`: of the monotonic clock, in seconds."""
        if self._waits_since is not None:
            self.spent = max(0.0, self.spent - self._refill * (now - self._waits_since))
            self._waits_since = None

    def charge(self, seconds: float) -> None:
        """The inferlet has used this time."""
        self.used += seconds
        self.spent += seconds

    def waits(self, now: float) -> None:
        """From now on until its next turn it asks for nothing."""
        self._waits_since = now
