"""Where the keys are that the steps of one decode run see, and where the next ones go."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pie_control.calls.columns import Numbers
from pie_control.resources.ranges import Range


class Segment(NamedTuple):
    """Slots `begin` .. `end` within a page; `adjoins`: the keys before them end in this page, at `begin`."""

    page: int  # address
    begin: int
    end: int
    adjoins: bool


def segments_of(context: Sequence[Range], own: Sequence[Range], page_size: int) -> Iterator[Segment]:
    """The slots of a run, page by page, behind those of its context."""
    before = context[-1][1] if context else None
    for start, stop in own:
        while start < stop:
            page, begin = divmod(start, page_size)
            end = min(stop - page * page_size, page_size)
            yield Segment(page, begin, end, begin > 0 and before == start)
            before = start = page * page_size + end


class RunKeys:
    """Runs of keys within pages, in the order in which steps see them, as the message `Forward` has them."""

    __slots__ = ("_begins", "_ends", "_pages", "_size", "count", "dense")

    def __init__(self, context: Sequence[Range], most_segments: int, physical: array[int], page_size: int) -> None:
        spans = [(start, start // page_size, (stop - 1) // page_size + 1, stop) for start, stop in context]
        most = sum(last - first for _, first, last, _ in spans) + most_segments
        self._size = page_size
        self._pages = np.zeros(most, np.int32)
        self._begins = np.zeros(most, np.int32)
        self._ends = np.full(most, page_size, np.int32)
        self.count = 0
        self.dense = True  # as in `Forward`
        for start, first, last, stop in spans:
            self._append(physical[first:last], start - first * page_size, stop - (last - 1) * page_size)

    def go_on(self, page: int, segment: Segment) -> None:
        """The next keys go to a segment, in this physical page. Those before it are complete."""
        if segment.adjoins:
            self._ends[self.count - 1] = segment.end
        else:
            self._append((page,), segment.begin, segment.end)

    def _append(self, pages: Sequence[int], begin: int, end: int) -> None:
        first = self.count
        self.count += len(pages)
        self.dense = self.dense and not begin and (not first or self._ends[first - 1] == self._size)
        self._pages[first : self.count] = pages
        self._begins[first] = begin
        self._ends[self.count - 1] = end

    @property
    def pages(self) -> Numbers:
        return self._pages[: self.count]

    @property
    def begins(self) -> Numbers:
        return self._begins[: self.count]

    @property
    def ends(self) -> Numbers:
        """The last one is that of the whole segment."""
        return self._ends[: self.count]
