"""An export: what it holds, and what it is worth."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_control.ids import Owner
from pie_control.tenants.tenant import ServiceClass, Standing, Tenant

from ..holdings import Block
from ..tables.slots import is_token
from .text_keys import OpenPage, TextKeys

CHEAP_TOKENS = 8192
"""From a context of this length on, attention costs more than half of what a token costs."""

Numbers = NDArray[np.int32]
Name = tuple[str, str | bytes]
"""A tenant's, and the name of an export or the key of a page."""


@dataclass(slots=True, eq=False)
class Export:
    """Pages with a name, or keys. `positions`: what address spaces know of each slot (tables/slots.py)."""

    standing: Standing  # of who made it
    name: str
    owner: Owner  # who made it
    future: int  # of its command
    adapters: Sequence[int] = ()  # numbers of those that its keys may depend on
    pages: Sequence[int] = ()  # physical, none while it is announced
    states: dict[int, int] = field(default_factory=dict)  # physical, by the place of the page that they hang on
    positions: Numbers = field(default_factory=lambda: np.zeros(0, np.int32))
    tokens: Numbers = field(default_factory=lambda: np.zeros(0, np.int32))
    num_tokens: int = 0
    used: float = 0.0  # seconds
    unwanted: bool = False  # nobody may have it: an adapter with which it was made is gone
    taken_back: bool = False  # before it stood: who has asked for it before gets it
    waiting: dict[tuple[Owner, int], None] = field(default_factory=dict)  # futures of imports
    keys: Sequence[bytes] = ()  # one for each page, of the beginning of a text, which has no name
    open_page: OpenPage | None = None  # its last page, if a beginning does not fill it
    depth: int = 0  # pages of the text before those that it has
    pinned: float = float("-inf")  # in seconds: until then it does not go for lack of memory

    @classmethod
    def of_beginning(
        cls, standing: Standing, name: str, owner: Owner, future: int, adapters: Sequence[int], text: TextKeys
    ) -> Export:
        """One of the beginning of a text."""
        return cls(standing, name, owner, future, adapters, keys=text.all_pages(), open_page=text.open_end())

    @property
    def tenant(self) -> Tenant:
        return self.standing.tenant

    def keeps_waiting(self, other: ServiceClass) -> bool:
        """Whether who works in this class would wait for a lower one, which may get nothing of many waves, or need
        memory that the other one holds."""
        return self.standing.service_class > other

    @property
    def is_beginning(self) -> bool:
        """Whether it is of the beginning of a text, also when all its pages were there already."""
        return not self.name

    @property
    def names(self) -> Sequence[Name]:
        """The names by which it is found."""
        tenant = self.tenant.name
        return [(tenant, key) for key in self.keys] if self.is_beginning else [(tenant, self.name)]

    @property
    def block(self) -> Block:
        """All that it has."""
        return Block(self.pages, list(self.states.values()))

    def wait(self, owner: Owner, future: int) -> None:
        """A future of an import gets it when it stands."""
        self.waiting[owner, future] = None

    def wait_no_more(self, owner: Owner, future: int) -> None:
        """The future is answered, or nobody wants it any more."""
        del self.waiting[owner, future]

    def fill(self, positions: Numbers, tokens: Numbers, now: float) -> None:
        """What is known of its slots."""
        self.positions, self.tokens, self.used = positions, tokens, now
        self.num_tokens = int(is_token(positions).sum())

    def take_back(self) -> None:
        """It will not stand."""
        self.taken_back = True

    def use(self, now: float) -> None:
        """An import gets its pages."""
        self.used = now

    def leave_out(self, places: Collection[int]) -> list[int]:
        """Gives its pages at these places, which it does not have any more. Their states were taken from it."""
        pages = self.pages
        own = [place for place in range(len(pages)) if place not in places]
        if len(own) == len(pages):
            return []
        self.num_tokens = self.num_tokens * len(own) // len(pages)
        self.keys, self.pages = [self.keys[place] for place in own], [pages[place] for place in own]
        self.states = {new: self.states[place] for new, place in enumerate(own) if place in self.states}
        self.depth = own[0] if own else 0
        if len(pages) - 1 in places:
            self.open_page = None
        return [pages[place] for place in places]

    def pin(self, until: float) -> None:
        """It does not go for lack of memory, until then."""
        self.pinned = max(self.pinned, until)

    def value(self, now: float) -> tuple[bool, float, int]:
        """What it would cost to compute a page of it again, over the time for which nobody has used it. Of the pages of
        a text that were used together, the last ones have the least: nobody finds those behind one that is missing."""
        cost = self.num_tokens * (1.0 if self.is_beginning else 1 + self.num_tokens / CHEAP_TOKENS)
        return self.pinned > now, cost / len(self.pages) / (1.0 + max(0.0, now - self.used)), -self.depth


class Beginning(NamedTuple):
    """What stands of a text: its first pages with so many tokens, and the exports that have them. `coming`: the export
    with the next page, which does not stand yet, and is worth waiting for; None if there is none."""

    block: Block
    tokens: int
    exports: Collection[Export]
    coming: Export | None
