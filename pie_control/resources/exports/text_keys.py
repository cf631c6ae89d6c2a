"""Keys of beginnings of texts: a hash of all tokens up to the end of a page, which may be an *open* one.

An open page is the last one of what was offered, and not full. Who asks for a text does not know where such pages end,
so who has them notes their lengths by the key of the page before.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 16
PAGES_OF_A_SEARCH = 128
"""Pages of a text that are looked up in the time for one search."""


class OpenPage(NamedTuple):
    """The last page of a text that does not fill it: the key of the pages before, and how many tokens it holds."""

    before: bytes
    length: int


class TextKeys(NamedTuple):
    """The keys of a text."""

    page_size: int
    tokens: NDArray[np.int32]
    before: bytes  # of no page
    pages: list[bytes]  # of each full page

    @classmethod
    def of(cls, tokens: NDArray[np.int32], page_size: int, apart: str) -> TextKeys:
        """`apart`: what keeps the text apart from equal ones."""
        before = key = blake2b(apart.encode(), digest_size=KEY_BYTES).digest()
        pages = []
        for begin in range(0, len(tokens) - page_size + 1, page_size):
            key = _key(key, tokens[begin : begin + page_size])
            pages.append(key)
        return cls(page_size, tokens, before, pages)

    def fits(self, page_size: int) -> bool:
        """Whether these are keys for pages of this size, as `of` makes them: only a host that lies has others."""
        right = self.page_size == page_size and len(self.tokens) // page_size == len(self.pages)
        return right and all(len(key) == KEY_BYTES for key in (self.before, *self.pages))

    @property
    def searches(self) -> int:
        """How many searches it counts as to look all of its pages up."""
        return 1 + len(self.pages) // PAGES_OF_A_SEARCH

    def before_page(self, place: int) -> bytes:
        """The key of the pages before one."""
        return self.pages[place - 1] if place else self.before

    def of_open(self, place: int, length: int) -> bytes | None:
        """The key of the page at a place, if it held so many tokens of the text; None: the text is shorter."""
        begin = place * self.page_size
        if begin + length > len(self.tokens):
            return None
        return _key(self.before_page(place), self.tokens[begin : begin + length])

    def open_end(self) -> OpenPage | None:
        """The last page, if the text does not fill it."""
        length = len(self.tokens) % self.page_size
        return OpenPage(self.before_page(len(self.pages)), length) if length else None

    def all_pages(self) -> list[bytes]:
        """The keys of all pages, with that of an open one."""
        end = self.open_end()
        return self.pages if end is None else [*self.pages, _key(end.before, self.tokens[-end.length :])]


def _key(before: bytes, tokens: NDArray[np.int32]) -> bytes:
    return blake2b(tokens.astype("<i4", copy=False).tobytes(), digest_size=KEY_BYTES, key=before).digest()


class OpenPages:
    """The open pages that stand, by tenant and the pages before."""

    def __init__(self) -> None:
        self._lengths: dict[tuple[str, bytes], list[int]] = {}

    def add(self, tenant: str, page: OpenPage) -> None:
        """One more stands."""
        self._lengths.setdefault((tenant, page.before), []).append(page.length)

    def remove(self, tenant: str, page: OpenPage) -> None:
        """One does not stand any more."""
        lengths = self._lengths[tenant, page.before]
        lengths.remove(page.length)
        if not lengths:
            del self._lengths[tenant, page.before]

    def __len__(self) -> int:
        return sum(map(len, self._lengths.values()))

    def within(self, tenant: str, text: TextKeys, first: int, last: int) -> Iterator[tuple[int, int, bytes]]:
        """Those that a text may go on from, at the places `first` .. `last`, the longest beginning first: the place of
        the page, how many tokens it holds, and the key."""
        for place in range(last, first - 1, -1) if self._lengths else ():
            lengths = self._lengths.get((tenant, text.before_page(place)), ())
            for length in sorted(set(lengths), reverse=True):
                if (key := text.of_open(place, length)) is not None:
                    yield place, length, key
