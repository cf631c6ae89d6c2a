"""Commands that look at many exports or pages: a turn has time for a few, so that thousands of them hold nobody up. The
others have the next turn, which comes at once; who had some in this one goes behind the others there."""

from __future__ import annotations

from collections.abc import Iterable

from pie_control.calls.kind import Command

from .account import Account, CommandQueue

MOST_SEARCHES = 64
"""In one turn."""


class Searches:
    """Those of a turn."""

    def __init__(self) -> None:
        self.left = MOST_SEARCHES
        self._before: set[Account] = set()  # who had some in the last turn
        self._now: set[Account] = set()  # who has had some in this one

    def turn_begins(self) -> None:
        self.left = MOST_SEARCHES
        if self._before or self._now:
            self._before, self._now = self._now, set()

    def has_time(self, command: Command) -> bool:
        """Whether this turn has time for a command that takes effect in the control layer."""
        return not command.searches or self.left > 0

    def note(self, account: Account, count: int) -> None:
        """An inferlet has had some."""
        self.left -= count
        self._now.add(account)

    def in_order(self, queues: Iterable[CommandQueue]) -> list[CommandQueue]:
        """Those of inferlets that had some in the last turn last."""
        before = self._before
        return sorted(queues, key=lambda queue: queue.account in before) if before else list(queues)
