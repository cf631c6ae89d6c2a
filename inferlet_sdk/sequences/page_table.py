"""The KV pages of one context, shared with the contexts that were forked from it, or with other inferlets.

Nobody writes to a shared page. Full pages stay shared; the last page of a context is shared after a fork until one of
those that hold it needs room in it, and then gets a copy, unless it is the last one. So does a context that is cut back
into a shared page, or hides a part of it. Reference counts within the inferlet free a page with its last context, in
any order of closing. Where all tokens of a page were dropped there is no page, but it keeps its place: token n is in
page n // page size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inferlet_sdk import traits
from inferlet_sdk.addresses import Addresses, Pages, Slots
from inferlet_sdk.errors import Exhausted, QuotaExceeded
from inferlet_sdk.sequences.queues import MANY_CONTEXTS, Queues

PAGES_AHEAD = 4
"""Number of pages allocated at once while a context grows token by token."""
MOST_MOVED = 1 << 16
"""Tokens that the host copies or moves in one call."""


class Page:
    """A page that contexts hold."""

    __slots__ = ("address", "holders", "sealed")

    def __init__(self, address: int, sealed: bool = False) -> None:
        self.address = address
        self.holders = 1
        self.sealed = sealed  # exported or imported: nobody writes to it

    @property
    def is_shared(self) -> bool:
        return self.holders > 1 or self.sealed


_DROPPED = Page(-1)
"""In place of a page whose tokens were all dropped."""


class Part(NamedTuple):
    """Tokens of a table that are joined with others: in these ranges, moved by so many positions."""

    pages: PageTable
    kept: Sequence[tuple[int, int]]
    by: int


class PageTable:
    """Pages of one context, in the order of its tokens.

    `context` and `output` are flat ranges for `forward`: all pages, and the pages for new tokens.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._page_size = queues.info.page_size
        self._pages: list[Page] = []
        self.dropped: list[tuple[int, int]] = []  # ranges of tokens, in order, apart from each other
        self._shared_end = 0  # tokens at a fork or import that ended within a page, as long as that page is shared
        self._ordinary: int | None = None  # while a decode run goes on: pages that were not reserved for it
        self.context: list[int] = []
        self.output: list[int] = []
        self.capacity = 0

    @property
    def pages(self) -> Pages:
        """Addresses of all pages."""
        return Pages(self.context)

    def reserve(self, queue: int, tokens: int) -> None:
        """Makes room for a total of `tokens` tokens."""
        if self._shared_end:
            self.own_end(queue)
        missing = -(-tokens // self._page_size) - len(self._pages)
        if missing > 0:
            self._add(self._allocate(queue, missing))

    def _add(self, pages: Pages) -> None:
        """Has pages of its own behind the others; none of these is shared in a part."""
        shared = self.output is not self.context
        self._pages += [Page(address) for address in pages]
        self.context = list((Pages(self.context) + pages).ranges)
        self.output = list((Pages(self.output) + pages).ranges) if shared else self.context
        self.capacity = len(self._pages) * self._page_size

    def _allocate(self, queue: int, missing: int) -> Pages:
        if missing < PAGES_AHEAD and self._queues.contexts <= MANY_CONTEXTS:
            try:
                return traits.alloc_kvpage(queue, PAGES_AHEAD)
            except (QuotaExceeded, Exhausted):
                pass  # the pages ahead are not essential
        return traits.alloc_kvpage(queue, missing)

    def reserve_for_run(self, queue: int, tokens: int) -> int:
        """Makes room for a decode run up to a total of `tokens` tokens, or fewer; returns for how many there is room.
        The pages take memory as the run reaches them. `settle` ends this."""
        if self._shared_end:
            self.own_end(queue)
        self._ordinary = len(self._pages)
        missing = min(-(-tokens // self._page_size) - self._ordinary, self._queues.most_pages_ahead())
        while missing > 0:
            try:
                pages = traits.reserve_kvpage(queue, missing)
            except (QuotaExceeded, Exhausted):
                missing //= 2  # the run will be shorter
            else:
                self._add(pages)
                break
        return self.capacity

    def settle(self, queue: int, tokens: int) -> None:
        """A run has ended: gives back the pages that were reserved for it, but those of the first `tokens` tokens."""
        if self._ordinary is None:
            return
        used, self._ordinary = max(self._ordinary, -(-tokens // self._page_size)), None
        unused = self._pages[used:]
        if unused:
            del self._pages[used:]
            self._release(queue, unused)
            self._update()

    def fork_to(self, child: PageTable, tokens: int) -> None:
        """Gives an empty table the first `tokens` tokens, which are all that have keys. Calls nothing of the host."""
        full, rest = divmod(tokens, self._page_size)
        child._pages = self._pages[: full + (rest > 0)]
        shared = 0
        for page in child._pages:
            if page is not _DROPPED:
                page.holders += 1
                shared += 1
        child.dropped = _below(self.dropped, tokens)
        child.context, child.output = list(self.pages[:shared].ranges), []
        self.output = list(self.pages[shared:].ranges)
        child.capacity = full * self._page_size
        if rest:
            self._shared_end = child._shared_end = tokens
            self.capacity = child.capacity

    def own_end(self, queue: int) -> None:
        """Has the page with its last tokens for itself, if there is one: a copy, if others hold it."""
        if not self._shared_end:
            return
        place, rest = divmod(self._shared_end, self._page_size)
        page = self._pages[place]
        if page.is_shared:
            if place + 1 == len(self._pages):
                self._pages += [Page(address) for address in self._allocate(queue, 1)]
            own = self._pages[place + 1]
            source, target = (Slots((one.address * self._page_size, rest)) for one in (page, own))
            traits.copy_kvpage(queue, source, target)
            self._release(queue, [page])
            del self._pages[place]
        self._shared_end = 0
        if self.dropped:
            self._update()
            return
        end = Pages.of([one.address for one in self._pages[place:]])
        self.context, self.output = list((self.pages[:place] + end).ranges), list(end.ranges)
        self.capacity = len(self._pages) * self._page_size

    def owns(self, tokens: int) -> bool:
        """Whether the page with the last of the first `tokens` tokens is nobody else's."""
        return not self._pages[(tokens - 1) // self._page_size].is_shared

    def join(self, queue: int, parts: Sequence[Part]) -> None:
        """Has the tokens of other tables behind each other; it is empty. Full pages are shared if a page begins there,
        and nothing is left out, moved or there before; the others are copied, at once unless they share pages, as a
        slot stands in a copy once: so this takes few waves."""
        size, tokens, sources, targets = self._page_size, 0, Slots(()), list[tuple[int, int]]()
        copied = set[Page]()
        for part in parts:
            other, count = part.pages, _count(part.kept)
            stays = tokens % size == 0 and part.by == 0 and not other.dropped
            done = count - count % size if stays and not {*self._pages} & {*other._pages} else 0
            if done:
                shared = other._pages[: done // size]
                for page in shared:
                    page.holders += 1
                self._pages[tokens // size : tokens // size] = shared  # spare pages stay behind them
                self._update()
                other._update()
            if done < count:
                self.reserve(queue, tokens + count)
                if copied & (own := {*other._pages} - {_DROPPED}):
                    traits.copy_kvpage(queue, sources, self._slots_of(targets))
                    sources, targets, copied = Slots(()), [], set()
                copied |= own
                sources = sum((other._slots(max(start, done), stop) for start, stop in part.kept), sources)
                targets.append((tokens + done, tokens + count))
            tokens += count
        if targets:
            traits.copy_kvpage(queue, sources, self._slots_of(targets))
        begin = 0
        for part in parts:
            stop = begin + _count(part.kept)
            if part.by:
                self._move(queue, begin, stop, part.by, tokens)
            begin = stop

    def kept(self, count: int) -> list[tuple[int, int]]:
        """The ranges of the first `count` tokens that were not dropped."""
        edges = [0, *(edge for one in _below(self.dropped, count) for edge in one), count]
        return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]

    def _slots_of(self, ranges: Iterable[tuple[int, int]]) -> Slots:
        return sum((self._slots(*one) for one in ranges), Slots(()))

    def _slots(self, start: int, stop: int) -> Slots:
        """Those of the tokens `start` .. `stop`, of which none was dropped."""
        place = start // self._page_size
        pages = Pages.of([page.address for page in self._pages[place : -(-stop // self._page_size)]])
        begin = place * self._page_size
        return pages.slots(self._page_size)[start - begin : stop - begin]

    def adopt(self, imported: Iterable[Pages], tokens: int) -> None:
        """Has pages with `tokens` tokens that were imported, at its front; it is empty, but for spare pages."""
        self._pages[:0] = [Page(address, sealed=True) for pages in imported for address in pages]
        self._shared_end = tokens if tokens % self._page_size else 0
        self._update()

    def seal(self, start: int, stop: int) -> Pages:
        """The pages that hold the tokens `start` .. `stop`; from now on nobody writes to them. If they do not fill the
        last one, they are all that have keys."""
        pages = self._pages[start // self._page_size : -(-stop // self._page_size)]
        for page in pages:
            page.sealed = True
        if stop % self._page_size:
            self._shared_end = stop
        self._update()
        return Pages.of([page.address for page in pages])

    def copy_rest(self, queue: int, tokens: int) -> Pages:
        """A copy of the last page, if the first `tokens` tokens do not fill it."""
        full, rest = divmod(tokens, self._page_size)
        return Pages.of([self._copy(queue, self._pages[full], rest).address] if rest else [])

    def drop(self, queue: int, start: int, stop: int, computed: int, close_gap: bool) -> int:
        """Hides the tokens `start` .. `stop` of the first `computed`, which have keys, from what comes, and gives back
        the pages that hold no others. With `close_gap` those behind move up; gives by how many positions they do."""
        self.own_end(queue)
        dropped = _merged([*self.dropped, (start, stop)])
        gap = _count(dropped) - _count(self.dropped) if close_gap else 0
        behind = next(end for begin, end in dropped if begin <= start < end)
        size, whole, unused = self._page_size, [(0, self._page_size)], []
        begin = next((end for first, end in self.dropped if first <= start < end), start)  # what is new of them
        first, last = start // size, (stop - 1) // size
        changed = {place for place in (first, last) if self._within(dropped, place) != whole}
        self._own(queue, changed.union(range(behind // size, -(-computed // size)) if gap else ()), computed)
        self.dropped = dropped  # there is room for all that it takes
        for place in range(begin // size, last + 1):
            page, hidden = self._pages[place], self._within(dropped, place)
            if page is _DROPPED:
                continue
            if hidden == whole:
                unused.append(page)
                self._pages[place] = _DROPPED
            else:
                _hide(queue, page, hidden)
        if gap:
            self._move(queue, behind, computed, -gap, computed)
        self._release(queue, unused)
        self._update()
        return gap

    def _within(self, tokens: Iterable[tuple[int, int]], place: int) -> list[tuple[int, int]]:
        """What of ranges of tokens is in the page at a place, as slots."""
        size, begin = self._page_size, place * self._page_size
        near = ((max(start - begin, 0), min(stop - begin, size)) for start, stop in tokens)
        return [(start, stop) for start, stop in near if start < stop]

    def _own(self, queue: int, places: Iterable[int], stop: int) -> None:
        """Has the pages at these places, with some of the first `stop` tokens, for itself: copies of shared ones."""
        size, places = self._page_size, sorted(place for place in places if self._pages[place].is_shared)
        for first in range(0, len(places), MOST_MOVED // size):
            some = places[first : first + MOST_MOVED // size]
            shared, own = [self._pages[place] for place in some], traits.alloc_kvpage(queue, len(some))
            count = len(some) * size - max(0, (some[-1] + 1) * size - stop)
            slots = Pages.of([page.address for page in shared]).slots(size)[:count]
            traits.copy_kvpage(queue, slots, own.slots(size)[:count])
            for place, address in zip(some, own, strict=True):
                self._pages[place] = Page(address)
            self._release(queue, shared)
            self._update()

    def _move(self, queue: int, start: int, stop: int, by: int, end: int) -> None:
        """Moves the tokens `start` .. `stop` of the first `end`, which have keys, to other positions. Their pages must
        be its own."""
        if start == stop:
            return
        size, places = self._page_size, range(start // self._page_size, -(-stop // self._page_size))
        stay = {place: self._others(place, start, stop, end) for place in {places[0], places[-1]}}
        for place, others in stay.items():
            if others:  # they are hidden meanwhile
                _hide(queue, self._pages[place], [*others, *self._within(self.dropped, place)])
        pages = [page.address for page in self._pages[places.start : places.stop] if page is not _DROPPED]
        for first in range(0, len(pages), MOST_MOVED // size):
            traits.shift_kvpage(queue, pages[first : first + MOST_MOVED // size], by)
        for place, others in stay.items():
            if others:
                _hide(queue, self._pages[place], self._within(self.dropped, place))

    def _others(self, place: int, start: int, stop: int, end: int) -> list[tuple[int, int]]:
        """The ranges of slots in the page at a place that hold tokens up to `end`, but for `start` .. `stop`."""
        begin, filled = place * self._page_size, min(end - place * self._page_size, self._page_size)
        return [one for one in ((0, start - begin), (stop - begin, filled)) if one[0] < one[1]]

    def cut(self, queue: int, tokens: int) -> None:
        """Keeps the first `tokens` tokens. Pages of its own stay for new tokens."""
        full, rest = divmod(tokens, self._page_size)
        self.dropped = _below(self.dropped, tokens)
        kept, behind = self._pages[:full], [page for page in self._pages[full:] if page is not _DROPPED]
        own = [page for page in behind if not page.is_shared]
        shared = [page for page in behind if page.is_shared]
        if rest and behind[0] in shared:
            kept.append(self._copy(queue, behind[0], rest))
        within = rest if own and own[0] is behind[0] else 0
        _trim(queue, own, within)
        if len(own) == len(self._pages) - full and not self._shared_end and len(own) <= sum(self.output[1::2]):
            return  # all stay as they are, and the lists have them
        self._pages, self._shared_end = kept + own, 0
        self._release(queue, shared)
        self._update()

    def _copy(self, queue: int, page: Page, tokens: int) -> Page:
        copy = traits.alloc_kvpage(queue, 1)
        source = Pages.of([page.address]).slots(self._page_size)[:tokens]
        traits.copy_kvpage(queue, source, copy.slots(self._page_size)[:tokens])
        return Page(copy[0])

    def close(self, queue: int) -> None:
        """Releases all pages."""
        pages, self._pages = self._pages, []
        self._release(queue, [page for page in pages if page is not _DROPPED])
        self.context, self.output, self.capacity = [], [], 0

    def _release(self, queue: int, pages: Iterable[Page]) -> None:
        unused = []
        for page in pages:
            page.holders -= 1
            if page.holders == 0:
                unused.append(page.address)
        if unused:
            traits.dealloc_kvpage(queue, unused)

    def _live(self) -> list[Page]:
        """All pages but those whose tokens were all dropped, of which a long text may have very many."""
        live, behind = list[Page](), 0
        for start, stop in self.dropped:
            first, last = -(-start // self._page_size), stop // self._page_size
            if first < last:
                live += self._pages[behind:first]
                behind = last
        return live + self._pages[behind:]

    def _update(self) -> None:
        pages = self._live()
        shared = sum(1 for page in pages if page.is_shared)
        addresses = [page.address for page in pages]
        self.context = list(Addresses.of(addresses).ranges)
        self.output = list(Addresses.of(addresses[shared:]).ranges) if shared else self.context
        writable = self._shared_end // self._page_size if self._shared_end else len(self._pages)
        self.capacity = writable * self._page_size


def _hide(queue: int, page: Page, ranges: Iterable[tuple[int, int]]) -> None:
    """Hides the tokens in these ranges of slots, and shows all others of the page."""
    traits.mask_kvpage(queue, [page.address], sorted({slot for start, stop in ranges for slot in range(start, stop)}))


def _count(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in order, those that touch in one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


def _below(ranges: list[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """What of the ranges is below `end`."""
    return [(start, min(stop, end)) for start, stop in ranges if start < end]


def _trim(queue: int, pages: list[Page], keep: int) -> None:
    if pages:
        traits.trim_kvpage(queue, [page.address for page in pages], keep)
