"""The processor time of an inferlet."""

from __future__ import annotations

OF_CHILDREN = 7 / 8
"""Part of a budget that children may use up; the rest lets the parent hear of it."""


class ProcessorTime:
    """The processor time of one inferlet, against a budget that comes back while it waits.

    An inferlet may use `limit` seconds at a stretch, and gets `refill` seconds back for each second in which it waits.
    So one that computes all the time ends, whoever else runs, and one that mostly waits may live for ever. What a child
    uses comes out of the budget of its parent as well; when that is used up, the child is the one that has exceeded it.
    """

    __slots__ = ("_limit", "_parent", "_refill", "_turn_began", "_waits_since", "spent", "used")

    def __init__(self, limit: float, refill: float, parent: ProcessorTime | None = None) -> None:
        self._limit = limit
        self._refill = refill
        self._parent = parent
        self._waits_since: float | None = None
        self._turn_began: float | None = None
        self.used = 0.0  # seconds in all
        self.spent = 0.0  # seconds of the budget

    @property
    def is_exceeded(self) -> bool:
        return self.spent > self._limit or (self._parent is not None and self._parent._is_used_up)

    @property
    def _is_used_up(self) -> bool:
        """Whether nothing is left for children."""
        return self.spent >= self._limit * OF_CHILDREN or (self._parent is not None and self._parent._is_used_up)

    def turn_begins(self, now: float, processor: float = 0.0) -> None:
        """`now`: of the monotonic clock, in seconds; `processor`: of the thread's processor time."""
        self._turn_began = processor
        if self._waits_since is not None:
            self._refill_until(now)
            self._waits_since = None
        if self._parent is not None:
            self._parent._child_turn_begins(now)

    def turn_ends(self, processor: float) -> float:
        """Charges the turn; returns its seconds. `processor`: as in `turn_begins`."""
        assert self._turn_began is not None
        seconds = processor - self._turn_began
        self._turn_began = None
        self.charge(seconds)
        return seconds

    def spent_at(self, processor: float) -> float:
        """Seconds of the budget, with those of the turn that goes on. `processor`: as in `turn_begins`."""
        return self.spent + (0.0 if self._turn_began is None else processor - self._turn_began)

    def _child_turn_begins(self, now: float) -> None:
        """What has come back to one that waits counts for its children."""
        if self._waits_since is not None:
            self._refill_until(now)
            self._waits_since = now
        if self._parent is not None:
            self._parent._child_turn_begins(now)

    def _refill_until(self, now: float) -> None:
        assert self._waits_since is not None
        self.spent = max(0.0, self.spent - self._refill * (now - self._waits_since))

    def charge(self, seconds: float) -> None:
        """The inferlet has used this time."""
        self.used += seconds
        self.spent += seconds
        if self._parent is not None:
            self._parent._charge_child(seconds)

    def _charge_child(self, seconds: float) -> None:
        """At most what children may use: the parent itself has not exceeded its budget."""
        self.spent = max(self.spent, min(self.spent + seconds, self._limit * OF_CHILDREN))
        if self._parent is not None:
            self._parent._charge_child(seconds)

    def waits(self, now: float) -> None:
        """From now on until its next turn it asks for nothing."""
        self._waits_since = now
