"""Pages that are full from a first one on: so a decode step need not look at every page of its context."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.ranges import Range

from .slots import EMPTY

MAX_SPANS = 256
"""Beyond this number, all are forgotten."""


class Span:
    """`full` pages from a first one on are full; their largest position and newest writer's stamp."""

    __slots__ = ("full", "stamp", "top")

    def __init__(self) -> None:
        self.full = 0
        self.top = EMPTY
        self.stamp = 0


class Spans:
    """Remembers spans of a table. `fill`, `top` and `writes` are the columns of the table (pages.py)."""

    def __init__(self, page_size: int, fill: list[int], top: list[int], writes: list[int]) -> None:
        self._size = page_size
        self._fill = fill
        self._top = top
        self._writes = writes
        self._spans: dict[int, Span] = {}
        self.cleared = 0  # how often

    def clear(self) -> None:
        """Full pages have changed."""
        self._spans.clear()
        self.cleared += 1

    def full_pages(self, first: int, last: int) -> Span | None:
        """The full pages at the start of the range; None if the range leaves the table."""
        fill, size = self._fill, self._size
        if last > len(fill):
            return None
        span = self._spans.get(first)
        if span is None:
            span = self._new_span(first)
        page = first + span.full
        if page > last:
            return self._part_of_span(first, last)
        while page < last and fill[page] == size:
            span.top = max(span.top, self._top[page])
            span.stamp = max(span.stamp, self._writes[page])
            page += 1
            span.full += 1
        return span

    def _part_of_span(self, first: int, last: int) -> Span:
        part = Span()
        part.full = last - first
        part.top = max(self._top[first:last])
        part.stamp = max(self._writes[first:last])
        return part

    def _new_span(self, first: int) -> Span:
        if len(self._spans) >= MAX_SPANS:
            self._spans.clear()
        span = self._spans[first] = Span()
        return span

    def newest_write(self, ranges: Sequence[Range]) -> int:
        """Largest stamp of the pages, in the table."""
        newest = 0
        for first, last in ranges:
            span = self._spans.get(first)
            skipped = span.full if span and span.full <= last - first else 0
            rest = max(self._writes[first + skipped : last], default=0)
            newest = max(newest, rest, span.stamp if span and skipped else 0)
        return newest
