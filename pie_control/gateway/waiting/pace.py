"""How fast places come free, as far as the last ends say."""

from __future__ import annotations

from collections import deque
from math import sqrt

ENDS_OF_PLACE, LEAST_ENDS = 4, 64
"""The pace is that of so many last ends of each place: requests that began together end together, and a burst of them
must not pass for the pace."""
DOUBT = 2.0
"""Standard deviations that are allowed for, as if ends came at random: of the time until those who wait have gone, and
of the pace."""


class Pace:
    """Time counts only while someone would be refused a place, so idle times do not. Times are in seconds."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._ends = deque([0.0], maxlen=1 + max(LEAST_ENDS, ENDS_OF_PLACE * places))  # of the time that counts
        self._counted = 0.0
        self._since: float | None = None  # time counts

    def counts(self, is_full: bool, now: float) -> None:
        """Whether time counts from now on."""
        if self._since is not None:
            self._counted += now - self._since
        self._since = now if is_full else None

    def ends(self, now: float) -> None:
        """A place came free."""
        if self._since is not None:
            self._ends.append(self._time(now))

    def _time(self, now: float) -> float:
        return self._counted + (0.0 if self._since is None else now - self._since)

    def expected(self, waiting: int, now: float) -> float:
        """Seconds after which so many will have gone. While fewer have ended than there are places, as if all others
        were about to; 0: nothing is known."""
        passed = self._time(now) - self._ends[0]
        return waiting * passed / max(len(self._ends) - 1, self._places)

    def surely(self, waiting: int, now: float) -> float:
        """Seconds after which so many will have gone in all but few cases, once each place has come free."""
        ends = len(self._ends) - 1
        doubt = DOUBT * sqrt(waiting - 1 + waiting**2 / ends) if ends >= self._places else 0.0
        return self.expected(1, now) * (waiting + doubt)
