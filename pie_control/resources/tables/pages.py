"""The page addresses of one inferlet: which slot holds which position, as issued.

Theory of operation. State is kept at issue time, in the order in which the inferlet issues commands, so what a command
sees does not depend on when it runs. A page is *regular* when its filled slots are its first ones; then `fill` (their
number) and `top` (their largest position) say all that the usual forward needs. A page that a copy left with holes, or
with a hidden token, is *irregular*: `fill` says so and the slots themselves are looked at.

Slots are named by virtual slot numbers, page * page_size + offset; a run of slots is an interval of them, which may
span pages with adjoining addresses. A decode step must not look at every page of its context: `Span` remembers how many
pages from a first one on are full. Full pages change only through `trim`, `copy`, `rewrite` and deallocation, which
forget spans.

A slot that holds nothing is free, or *withheld* from all but decode runs: a run that goes on will fill it, or its page
has no memory yet. Which is which, the slots say (slots.py); `fill` and `top` count tokens that are seen only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidState, NotFound
from pie_control.resources.intervals import append_interval, intervals_of, slots_in
from pie_control.resources.ranges import Range

from .addresses import AddressAllocator
from .contexts import Context
from .slots import EMPTY, RESERVED, SEALED, UNBOUND, is_token, is_withheld
from .spans import Spans
from .summaries import IRREGULAR, summaries, summary

NOT_OWNED = -1
FEW_PAGES = 8
"""Up to this number, pages are looked at one by one: an operation on an array takes longer than a look at a page."""
FAR = np.iinfo(np.int32).max
"""Behind all positions."""


class PageTable:
    """State by virtual page address."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.fill: list[int] = []
        self.top: list[int] = []
        self.writes: list[int] = []  # stamp of the last command that wrote here (see hazards.py)
        self.positions: NDArray[np.int32] = np.empty(0, np.int32)
        self.owned = 0
        self.withheld = 0  # slots
        self.sealed: dict[int, int] = {}  # pages that nobody writes to, and how often each was exported or imported
        self._spans = Spans(page_size, self.fill, self.top, self.writes)
        self._addresses = AddressAllocator()

    @property
    def changes(self) -> int:
        """How often a slot that held a token has lost it, or has changed hands."""
        return self._spans.cleared

    # ---- ownership ----

    def allocate(self, count: int, stamp: int) -> int:
        first = self._addresses.allocate(count)
        if self._addresses.capacity > len(self.fill):
            self._grow()
        last = first + count
        self.fill[first:last] = [0] * count
        self.top[first:last] = [EMPTY] * count
        self.writes[first:last] = [stamp] * count
        self.owned += count
        return first

    def disown(self, ranges: Sequence[Range]) -> None:
        """The addresses are invalid from now on; they are kept until `release`."""
        for first, last in ranges:
            self.fill[first:last] = [NOT_OWNED] * (last - first)
            slots = self.positions[first * self.page_size : last * self.page_size]
            if self.withheld:
                self.withheld -= int(np.count_nonzero(is_withheld(slots)))
            slots[:] = EMPTY
            self.owned -= last - first
            if self.sealed:
                for page in range(first, last):
                    self.sealed.pop(page, None)
        self._spans.clear()

    def release(self, ranges: Sequence[Range]) -> None:
        """Addresses that were disowned can be handed out again."""
        self._addresses.release(ranges)

    def check_owned(self, ranges: Sequence[Range]) -> None:
        """Raises NotFound if an address is not owned."""
        for first, last in ranges:
            held = self.fill[first:last]
            if NOT_OWNED in held or len(held) < last - first:
                bad = held.index(NOT_OWNED) if NOT_OWNED in held else len(held)
                raise NotFound(f"KV page {first + bad} is not allocated; alloc gives addresses")

    # ---- reading ----

    def behind_full(self, ranges: Sequence[Range]) -> Iterator[int]:
        """The pages, which are owned, in order, but for those at the start of each range that are full."""
        for first, last in ranges:
            span = self._spans.full_pages(first, last)
            yield from range(first + (span.full if span else 0), last)

    def context(self, ranges: Sequence[Range], smallest: int, largest: int) -> Context:
        """What queries at positions `smallest` .. `largest` read of the pages. Raises NotFound."""
        if len(ranges) == 1 and (slots := self._regular_prefix(*ranges[0], smallest)):
            start = ranges[0][0] * self.page_size
            return Context(((start, start + slots),), slots)
        regular = self._regular_context(ranges, smallest)
        return self._context_by_slot(ranges, smallest, largest) if regular is None else regular

    def _regular_context(self, ranges: Sequence[Range], below: int) -> Context | None:
        """All tokens of the pages, if they are the first slots of each range, at positions < `below`, and none is
        hidden."""
        intervals: list[Range] = []
        tokens = 0
        for first, last in ranges:
            slots = self._regular_prefix(first, last, below)
            if slots is None:
                return None
            if slots:
                start = first * self.page_size
                append_interval(intervals, start, start + slots)
                tokens += slots
        return Context(tuple(intervals), tokens)

    def newest_write(self, ranges: Sequence[Range]) -> int:
        """Largest stamp of the pages; the caller has called `context` with them."""
        return self._spans.newest_write(ranges)

    def _regular_prefix(self, first: int, last: int, below: int) -> int | None:
        """Number of filled slots, if they are the first ones of the range and all positions are < `below`."""
        if last - first == 1 and last <= len(self.fill):  # there may be thousands of such ranges, and as many spans
            return self.fill[first] if self.fill[first] >= 0 and self.top[first] < below else None
        span = self._spans.full_pages(first, last)
        if span is None or span.top >= below:
            return None
        tail = first + span.full
        if tail == last:
            return span.full * self.page_size
        fill = self.fill[tail]
        if fill < 0 or self.top[tail] >= below or (tail + 1 < last and any(self.fill[tail + 1 : last])):
            return None
        return span.full * self.page_size + fill

    def _context_by_slot(self, ranges: Sequence[Range], smallest: int, largest: int) -> Context:
        slots = self.slots_of(ranges)
        positions = self.positions[slots]
        seen = (positions > EMPTY) & (positions < largest)
        slots = slots[seen]
        return Context(intervals_of(slots), len(slots), bool((positions[seen] >= smallest).any()))

    def all_tokens(self, ranges: Sequence[Range]) -> tuple[Context, NDArray[np.bool_] | None]:
        """All tokens of the pages that are not hidden; and of each token, hidden or not, whether it is among them,
        or None if all are. Raises NotFound."""
        if (regular := self._regular_context(ranges, FAR)) is not None:
            return regular, None
        slots = self.slots_of(ranges)
        slots = slots[is_token(self.positions[slots])]
        seen = self.positions[slots] > EMPTY
        return Context(intervals_of(slots[seen]), int(seen.sum())), seen

    def held_at(self, intervals: Sequence[Range]) -> NDArray[np.int32]:
        """What slots of pages that are owned hold, in order."""
        if len(intervals) == 1:
            return self.positions[slice(*intervals[0])]
        return self.positions[slots_in(intervals)]

    def all_filled(self, intervals: Sequence[Range]) -> bool:
        """Whether these slots, of pages that are owned, all hold a token."""
        start, stop = intervals[0]
        page = start // self.page_size
        within = len(intervals) == 1 and stop <= page * self.page_size + self.fill[page]  # the tokens of a regular page
        return within or bool(is_token(self.held_at(intervals)).all())

    def none_filled(self, intervals: Sequence[Range]) -> bool:
        """Whether these slots, of pages that are owned, all hold none."""
        (start, stop), size = intervals[0], self.page_size
        page = start // size
        behind = len(intervals) == 1 and stop <= (page + 1) * size and 0 <= self.fill[page] <= start - page * size
        return behind or not is_token(self.held_at(intervals)).any()

    def slots_of(self, ranges: Sequence[Range]) -> NDArray[np.int64]:
        """All slots of the pages, in order. Raises NotFound."""
        self.check_owned(ranges)
        size = self.page_size
        pieces = [np.arange(first * size, last * size) for first, last in ranges]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def all_shown(self, ranges: Sequence[Range]) -> bool:
        """Whether surely no token of the pages is hidden. Raises NotFound."""
        self.check_owned(ranges)
        return not any(IRREGULAR in self.fill[first:last] for first, last in ranges)

    def held_in(self, ranges: Sequence[Range]) -> NDArray[np.int32]:
        """A copy of what all slots of the pages hold, in order. Raises NotFound."""
        self.check_owned(ranges)
        size = self.page_size
        pieces = [self.positions[first * size : last * size] for first, last in ranges]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int32)

    # ---- writing ----

    def free_slots(self, ranges: Sequence[Range], count: int) -> tuple[Range, ...]:
        """Intervals of the next `count` free slots in list order; changes nothing. Raises NotFound, InvalidState."""
        first, last = ranges[0]
        if len(ranges) == 1:
            span = self._spans.full_pages(first, last)
            if span is not None and first + span.full < last:
                fill = self.fill[first + span.full]
                start = (first + span.full) * self.page_size + fill
                fits = start + count <= last * self.page_size and self._all_free(start, start + count)
                if fill >= 0 and fits and not any(self.fill[first + span.full + 1 : last]):
                    return ((start, start + count),)
        return self._free_by_slot(ranges, count)

    def _all_free(self, start: int, stop: int) -> bool:
        """Whether none of these slots, which hold nothing, is withheld."""
        return not self.withheld or bool((self.positions[start:stop] == EMPTY).all())

    def _free_by_slot(self, ranges: Sequence[Range], count: int) -> tuple[Range, ...]:
        slots = self.slots_of(ranges)
        free = slots[self.free_places(slots, self.positions[slots] == EMPTY, count)]
        if len(free) < count:
            raise InvalidState(
                f"{count} tokens need {count} free slots, the output pages have {len(free)}; "
                "allocate pages and name them behind the others, or trim"
            )
        return intervals_of(free)

    def free_places(self, slots: NDArray[np.int64], free: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
        """The first `count` places in a list of slots where they are free, or fewer. Raises InvalidState if one of a
        page that is sealed is among them."""
        places = np.flatnonzero(free)[:count]
        if self.sealed:
            sealed = np.flatnonzero(self.positions[slots] == SEALED)
            if len(sealed) and (len(places) < count or sealed[0] < places[-1]):
                self._refuse_sealed(int(slots[sealed[0]]) // self.page_size)
        return places

    def append(self, intervals: Sequence[Range], positions: Sequence[int], stamp: int) -> None:
        """Fills free slots with the tokens at `positions`."""
        start = intervals[0][0]
        page = start // self.page_size
        if len(positions) == 1 and self.fill[page] == start - page * self.page_size:
            position = positions[0]
            self.positions[start] = position
            self.fill[page] += 1
            self.top[page] = max(self.top[page], position)
            self.writes[page] = stamp
            return
        done = 0
        for begin, end in intervals:
            self._store(begin, end, positions[done : done + end - begin], stamp)
            done += end - begin

    def _store(self, begin: int, end: int, positions: Sequence[int], stamp: int) -> None:
        size = self.page_size
        self.positions[begin:end] = positions
        first, last = begin // size, (end - 1) // size + 1
        self.writes[first:last] = [stamp] * (last - first)
        self.summarize({first, last - 1})
        if last - first > 2:
            tops = self.positions[(first + 1) * size : (last - 1) * size].reshape(-1, size).max(axis=1)
            self.fill[first + 1 : last - 1] = [size] * len(tops)
            self.top[first + 1 : last - 1] = tops.tolist()

    def copy(self, source: Sequence[Range], target: Sequence[Range], pages: Sequence[Range], stamp: int) -> None:
        """Copies positions from slots to as many slots, which are in these pages."""
        held = self.held_at(source).copy()
        self.positions[slice(*target[0]) if len(target) == 1 else slots_in(target)] = held
        for first, last in pages:
            self._summarize_all(first, last)
            self.writes[first:last] = [stamp] * (last - first)
        self._spans.clear()

    def trim(self, ranges: Sequence[Range], keep: int) -> list[int]:
        """Empties all slots of the pages but the first `keep`; returns the pages that lost tokens."""
        shortened = self.filled_behind(ranges, keep)
        for tail in shortened.values():
            tail[is_token(tail)] = EMPTY
        self.summarize(shortened)
        self._spans.clear()
        return list(shortened)

    def filled_behind(self, ranges: Sequence[Range], keep: int) -> dict[int, NDArray[np.int32]]:
        """The pages that hold tokens behind the first `keep` slots, with their slots from there on."""
        size, found, kept = self.page_size, {}, keep
        for page in (page for first, last in ranges for page in range(first, last)):
            own, fill = max(kept, 0), self.fill[page]
            kept -= size
            if own < fill or (fill == IRREGULAR and own < size):
                tail = self.positions[page * size + own : (page + 1) * size]
                if fill != IRREGULAR or is_token(tail).any():
                    found[page] = tail
        return found

    def rewrite(self, ranges: Sequence[Range], after: NDArray[np.int32], stamp: int | None = None) -> None:
        """What all slots of pages hold from now on, in order, as `held_in` gives it: the same tokens, hidden, shown or
        at other positions. `stamp`: of the command that writes them, if one does."""
        done, size = 0, self.page_size
        for first, last in ranges:
            count = (last - first) * size
            self.positions[first * size : last * size] = after[done : done + count]
            self._summarize_all(first, last)
            if stamp is not None:
                self.writes[first:last] = [stamp] * (last - first)
            done += count
        self._spans.clear()

    def summarize(self, pages: Iterable[int]) -> None:
        """Notes what a few pages hold."""
        size = self.page_size
        for page in pages:
            self.fill[page], self.top[page] = summary(self.positions[page * size : (page + 1) * size])

    def _summarize_all(self, first: int, last: int) -> None:
        """Summarizes pages that adjoin: there may be many."""
        if last - first <= FEW_PAGES:
            self.summarize(range(first, last))
            return
        slots = self.positions[first * self.page_size : last * self.page_size].reshape(-1, self.page_size)
        self.fill[first:last], self.top[first:last] = summaries(slots)

    # ---- exports and imports ----

    def read(self, ranges: Sequence[Range]) -> NDArray[np.int32]:
        """What is known of all slots of pages, in order. Raises NotFound, InvalidState (a decode run will fill one, or
        its page has no memory yet)."""
        found = self.held_in(ranges)
        if self.withheld and ((found == RESERVED) | (found == UNBOUND)).any():
            raise InvalidState(
                "a decode run goes on that writes to these pages, or one of them was reserved and has no memory: wait "
                "for the end of the run, and leave out pages that it did not reach"
            )
        return found

    def seal(self, ranges: Sequence[Range]) -> None:
        """Nobody may write to these pages from now on."""
        for page in (page for first, last in ranges for page in range(first, last)):
            self.sealed[page] = self.sealed.get(page, 0) + 1
        self._replace(ranges, EMPTY, SEALED)

    def unseal(self, ranges: Sequence[Range]) -> None:
        """An export of these pages did not come about."""
        for page in (page for first, last in ranges for page in range(first, last)):
            count = self.sealed.pop(page, 0) - 1  # none: it was given back meanwhile
            if count > 0:
                self.sealed[page] = count
            elif count == 0:
                self._replace(((page, page + 1),), SEALED, EMPTY)

    def _replace(self, ranges: Sequence[Range], old: int, new: int) -> None:
        """Replaces one kind of slots without a token by another."""
        for first, last in ranges:
            slots = self.positions[first * self.page_size : last * self.page_size]
            found = slots == np.int32(old)
            slots[found] = new
            self.withheld += int(np.count_nonzero(found)) * (1 if old == EMPTY else -1)

    def adopt(self, positions: NDArray[np.int32]) -> int:
        """First address of sealed pages with slots as `read` gave them elsewhere."""
        count = len(positions) // self.page_size
        first = self.allocate(count, 0)
        self.positions[first * self.page_size : (first + count) * self.page_size] = np.where(
            is_token(positions), positions, EMPTY
        )
        self._summarize_all(first, first + count)
        self.seal(((first, first + count),))
        return first

    def check_unsealed(self, pages: Iterable[int]) -> None:
        """Raises InvalidState if one of the pages is sealed."""
        if self.sealed:
            for page in pages:
                if page in self.sealed:
                    self._refuse_sealed(page)

    def _refuse_sealed(self, page: int) -> NoReturn:
        raise InvalidState(
            f"page {page} is sealed, for it was exported or imported: nobody writes to it. Leave it out of the pages "
            "that are written, or copy its tokens to a page of your own (copy-kvpage)"
        )

    def _grow(self) -> None:
        added = self._addresses.capacity - len(self.fill)
        self.fill.extend([NOT_OWNED] * added)
        self.top.extend([EMPTY] * added)
        self.writes.extend([0] * added)
        more = np.full(added * self.page_size, EMPTY, np.int32)
        self.positions = np.concatenate([self.positions, more])
