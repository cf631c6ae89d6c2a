"""Fair queueing: whose commands go next.

Theory of operation. Those who share a worker form a tree: a service class, its tenants, their inferlets, their
queues. Each is a `Share` with a *tag*: the virtual time at which its next service starts. A service moves the tag on
by its cost (input tokens, and a little for each command) over the weight. The next service is that of the smallest
tag, at each level of the tree; so those that always have work share the cost by their weights. A parent's *clock* is
the virtual time among its children. Who was idle begins at the clock, not before: nobody saves credit up, and nobody
can be starved by newcomers. Nor does anybody whose command does not fit into what others leave of each wave: when it
is served, with that or something smaller, it is behind the clock by the `credit` of its parent at most. Without that it
would go before all who come for as long as it could not go.

Ready queues wait in one of two lines. In the short line they have few tokens to run, or have not been looked at yet. In
the long line their first command is a long one, of more than FEW tokens. It *lags*: it is compared as if its next part
began later, by the cost of this part. So decodes have room in every wave, beside any number of prefills; and since the
lag does not grow, it moves no share. It is not a class of its own: a command of 17 tokens lags by 17 tokens.

This is start-time fair queueing (Goyal, Vin, Cheng 1996) in a hierarchy, and lags do what borrowed virtual time does
(Duda, Cheriton 1999). Tags only grow, so heaps are mended when a share comes to the top, and what waits is not looked
at otherwise.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Generic, TypeVar

from pie_control.tenants.tenant import ServiceClass, Standing

COMMAND_COST = 0.25
"""What each command costs, in tokens, beside those that it runs: so floods of cheap commands are counted."""
FEW = 16
"""A command of more tokens than this lags. A queue gives way to others after a service that costs as much."""

LEAST_CREDIT = 4 * FEW
"""Tokens, where waves are tiny: a service of each line, and what it takes too much."""

Q = TypeVar("Q")


class Line(IntEnum):
    """Where a ready queue waits."""

    SHORT = 0
    LONG = 1


class Share(Generic[Q]):
    """One of those that share what their parent gets. `Q` is the type of the leaves, the queues."""

    __slots__ = ("clock", "credit", "heaps", "lag", "listed", "parent", "rank", "ready", "tag", "tickets", "weight")

    def __init__(self, parent: Share[Q] | None, weight: float = 1.0, credit: float = inf) -> None:
        self.parent = parent
        self.weight = weight
        self.credit: float = credit if parent is None else parent.credit  # how far a child may be behind the clock
        self.tag = 0.0  # virtual time at which its next service starts
        self.clock = 0.0  # virtual time among its children
        self.lag = 0.0  # of a leaf in the long line: cost of its next part
        self.rank = 0  # smaller ones go before all others, whatever their tags
        self.ready = 0  # children that are ready; of a leaf: whether it is
        self.listed = [False, False]  # whether it is in its parent's heap, by line
        self.heaps: tuple[list[tuple[int, float, int, Share[Q]]], ...] = ([], [])  # (rank, tag, ticket, child), by line
        self.tickets = 0

    def first(self, line: Line) -> Q | None:
        """The leaf that is next in a line; None if none waits there."""
        heap = self.heaps[line]
        while heap:
            rank, tag, _, child = heap[0]
            if tag < child.tag:
                self.tickets += 1
                heapreplace(heap, (rank, child.tag, self.tickets, child))
                continue
            leaf = child.first(line)
            if leaf is not None:
                return leaf
            heappop(heap)
            child.listed[line] = False
        return None

    def reorder(self) -> None:
        """The ranks of children have changed."""
        for heap in self.heaps:
            heap[:] = [(child.rank, child.tag, ticket, child) for _, _, ticket, child in heap]
            heapify(heap)

    def weigh(self, weight: float) -> None:
        """Its part of what is shared; the operator may change it."""
        self.weight = weight

    def give_credit(self, credit: float) -> None:
        """A child may be as far behind the clock, at least."""
        self.credit = max(self.credit, credit)

    # ---- of leaves ----

    def goes_as(self, rank: int) -> None:
        """Smaller ranks go before all others of the same parent, which has to `reorder` then."""
        self.rank = rank

    def become_ready(self) -> None:
        """It has something to run. Those above it that were idle begin at the clocks of their parents."""
        share = self
        while True:
            share.ready += 1
            parent = share.parent
            if parent is None or share.ready > 1:
                return
            if share.tag < parent.clock:
                share.tag = parent.clock
            share = parent

    def become_idle(self) -> None:
        """It has nothing to run now."""
        share: Share[Q] | None = self
        while share is not None:
            share.ready -= 1
            if share.ready:
                return
            share = share.parent

    def enlist(self, line: Line) -> None:
        """It waits in a line, and so do those above it."""
        share = self
        while (parent := share.parent) is not None and not share.listed[line]:
            share.listed[line] = True
            parent.tickets += 1
            heappush(parent.heaps[line], (share.rank, share.tag, parent.tickets, share))
            share = parent

    def charge(self, cost: float, lagging: bool) -> None:
        """It was served. A clock does not count the service of one that lagged: it had to be late to begin with."""
        share = self
        while (parent := share.parent) is not None:
            start = max(share.tag, parent.clock - parent.credit)
            share.tag = finish = start + cost / share.weight
            reached = start if lagging else finish
            if parent.clock < reached:
                parent.clock = reached
            share = parent


def goes_before(short: Share[Q], long: Share[Q]) -> bool:
    """Whether the first queue of the short line goes before the first one of the long line."""
    one, other = short, long
    while one.parent is not other.parent:
        assert one.parent is not None
        assert other.parent is not None
        one, other = one.parent, other.parent
    if one.rank != other.rank:
        return one.rank < other.rank
    return one.tag <= other.tag + long.lag / other.weight


class Tenants(Generic[Q]):
    """The upper levels of the tree: service classes, and tenants that have inferlets."""

    def __init__(self, wave: float = inf) -> None:
        """`wave`: input tokens of a wave. That is more than who is served in order is ever behind others of its weight:
        a part of a long command, and a service of each line."""
        self._wave = max(wave, LEAST_CREDIT)
        self.classes: tuple[Share[Q], ...] = tuple(Share(None, credit=self._wave) for _ in ServiceClass)
        self._shares: dict[tuple[ServiceClass, str], Share[Q]] = {}
        self._inferlets: dict[tuple[ServiceClass, str], int] = {}

    def enter(self, standing: Standing) -> Share[Q]:
        """An inferlet begins; the share of its tenant."""
        tenant, key = standing.tenant, (standing.service_class, standing.tenant.name)
        root = self.classes[standing.service_class]
        if key not in self._shares:
            self._shares[key] = Share(root)
            self._inferlets[key] = 0
        self._inferlets[key] += 1
        share = self._shares[key]
        share.weigh(tenant.weight)
        root.give_credit(self._wave / tenant.weight)  # who has little weight leaps with the clock
        share.give_credit(self._wave / standing.weight)
        return share

    def leave(self, standing: Standing) -> None:
        """An inferlet has ended."""
        key = standing.service_class, standing.tenant.name
        self._inferlets[key] -= 1
        if not self._inferlets[key]:
            del self._inferlets[key], self._shares[key]
