"""The KV pages of `closed`, with automatic prefix caching.

A full page whose tokens are known is found again by them and by the page before it. A page that no sequence uses keeps
its content until its memory is needed; the one unused for longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Key = tuple[int, tuple[int, ...]]
"""The number of the cached page before, 0 for none, and the tokens of this one."""


class PagePool:
    """Which pages are free, used, or cached."""

    def __init__(self, count: int, page_size: int) -> None:
        self.page_size = page_size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))  # the next to be taken comes first
        self._users = [0] * count
        self._cached: dict[Key, tuple[int, int]] = {}  # its number, and the page
        self._keys: dict[int, Key] = {}  # of cached pages
        self._last_number = 0

    def __len__(self) -> int:
        """Pages that no sequence uses."""
        return len(self._free)

    def find(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """The cached pages that a prompt begins with, with their numbers. At least its last token is left out: its
        output is needed."""
        found: list[tuple[int, int]] = []
        number = 0
        for begin in range(0, len(tokens) - self.page_size, self.page_size):
            one = self._cached.get((number, tuple(tokens[begin : begin + self.page_size])))
            if one is None:
                break
            found.append(one)
            number = one[0]
        return found

    def unused_of(self, pages: Sequence[int]) -> int:
        """How many of these no sequence uses."""
        return sum(not self._users[page] for page in pages)

    def share(self, pages: Sequence[int]) -> None:
        """One sequence more uses these pages."""
        for page in pages:
            if not self._users[page]:
                del self._free[page]
            self._users[page] += 1

    def take(self, count: int) -> list[int]:
        """Pages for a sequence, of those that none uses; what they had cached is forgotten."""
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for page in taken:
            self._users[page] = 1
            if (key := self._keys.pop(page, None)) is not None:
                del self._cached[key]
        return taken

    def give_back(self, pages: Sequence[int]) -> None:
        """A sequence uses these pages no more, in the order of its tokens: the last of them go first."""
        for page in reversed(pages):
            self._users[page] -= 1
            if not self._users[page]:
                self._free[page] = None
                if page not in self._keys:
                    self._free.move_to_end(page, last=False)

    def cache(self, before: int, tokens: Sequence[int], page: int) -> int:
        """Caches a full page behind the one with the number `before`; its number, or that of an equal one."""
        key = before, tuple(tokens)
        if key not in self._cached:
            self._last_number += 1
            self._cached[key] = self._last_number, page
            self._keys[page] = key
        return self._cached[key][0]
