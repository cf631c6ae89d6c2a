"""Commands that look at many exports or pages: a turn has time for a few, so that thousands of them hold nobody up. The
others have the next turn, which comes at once; who has had some goes behind the others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from .account import Account, CommandQueue

MOST_SEARCHES = 64
"""In one turn."""


class Searches:
    """What a turn has time for, and the queues whose first command is a search, by inferlet. A turn looks at those that
    it has time for alone: there may be a hundred thousand."""

    def __init__(self) -> None:
        self.left = MOST_SEARCHES
        self.waiting: dict[Account, OrderedDict[CommandQueue, None]] = {}  # in the order of their turns

    def __len__(self) -> int:
        """The queues."""
        return sum(map(len, self.waiting.values()))

    def turn_begins(self) -> None:
        self.left = MOST_SEARCHES

    def has_time(self, account: Account, searched: bool) -> bool:
        """Whether this turn has time for one more of an inferlet. `searched`: it has had one, so others come first."""
        return self.left > 0 and not (searched and len(self.waiting) > (account in self.waiting))

    @property
    def can_go_on(self) -> bool:
        """Whether a queue waits, and this turn has time."""
        return bool(self.waiting) and self.left > 0

    def note(self, account: Account, count: int) -> None:
        """An inferlet has had some."""
        self.left -= count
        if (own := self.waiting.pop(account, None)) is not None:
            self.waiting[account] = own

    def add(self, queue: CommandQueue) -> None:
        """Its first command is one."""
        self.waiting.setdefault(queue.account, OrderedDict())[queue] = None

    def come_back(self, queue: CommandQueue) -> None:
        """The same, but it goes before the other queues of its inferlet: what they look for may be what it exports."""
        self.add(queue)
        self.waiting[queue.account].move_to_end(queue, last=False)

    def take(self) -> Iterator[CommandQueue]:
        """The queues whose turn it is, one by one as long as there is time."""
        while self.can_go_on:
            account, own = next(iter(self.waiting.items()))
            queue = next(iter(own))
            del own[queue]
            if not own:
                del self.waiting[account]
            yield queue

    def drop(self, account: Account) -> None:
        """An inferlet has ended."""
        self.waiting.pop(account, None)
