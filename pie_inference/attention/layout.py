"""Cuts a `Forward` batch into dense pieces, with numpy only, once per batch and distinct window.

A *segment* is a set of sequences of similar length whose pages are gathered together. A *tile* is a block of at most
`TILE` queries of each of these sequences. A decode batch is one segment with one tile of one query each; a long prefill
is a segment of its own with many tiles. Shorter sequences of a segment repeat their first page, which is mostly full,
and their last query. A boolean block says which keys a query may see, by the causal rule or the explicit mask, and by
the window. Slots of the pages that are no keys are *absent*: they may hold anything, such as what a former owner of the
page left there, and must not enter a product, not even with the factor 0. Runs outside the windows of all queries of
their sequence are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..protocol import Array, Forward
from .ragged import Booleans, Integers, Ragged, mask_of

MOST_PAGES = 1 << 13
"""Pages gathered at a time, unless a single sequence has more."""

TILE = 64
"""Queries in one product. Chunks of 64 were measured to be 2 to 10 times as fast as one product over a long prefill."""
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Window:
    """A window, and the positions that it applies to."""

    size: int
    positions: Array  # int32 [num_pages, page_size], positions of all slots, including those of the batch


@dataclass(frozen=True)
class Tile:
    """Q queries of each of S sequences; they look at pages `first_page` to `first_page + P` of the segment."""

    rows: Integers  # [S * Q], rows of the batch
    first_page: int
    visible: Booleans  # [S, Q, P * page_size]
    may_be_blind: bool  # whether a query may see no key at all


@dataclass(frozen=True)
class Segment:
    """S sequences whose keys are gathered together."""

    pages: Integers  # [S, P]
    absent: tuple[Integers, Integers]  # slots without a key: numbers of sequences, and of slots of their pages
    tiles: tuple[Tile, ...]


def cut(batch: Forward, ragged: Ragged, page_size: int, window: Window | None) -> list[Segment]:
    """Segments that together hold every row once. `ragged` has the lengths of the batch."""
    cutter = _Cutter(batch, ragged, page_size, window)
    return [cutter.segment(members) for members in cutter.groups()]


class _Cutter:
    """Cuts one batch, given the runs that its queries may see."""

    def __init__(self, batch: Forward, ragged: Ragged, page_size: int, window: Window | None) -> None:
        self._batch = batch
        self._ragged = ragged
        self._page_size = page_size
        self._window = window
        self._first_row = batch.q_indptr[:-1].astype(np.int64)
        self._runs, self._num_runs = self._useful_runs()
        self._first_run = np.cumsum(self._num_runs) - self._num_runs

    def _useful_runs(self) -> tuple[Integers, Integers]:
        """The useful runs, and their number in each sequence: at least one, its last run."""
        ragged, batch = self._ragged, self._batch
        if self._window is None:
            return np.arange(len(batch.kv_pages)), ragged.num_runs
        lowest = np.full(len(ragged.num_rows), NEVER)
        np.minimum.at(lowest, np.repeat(np.arange(len(lowest)), ragged.num_rows), batch.q_positions.astype(np.int64))
        owners = np.repeat(np.arange(len(lowest)), ragged.num_runs)
        newest = self._window.positions[batch.kv_pages].max(1)  # the newest of the page is at least that of the run
        useful = newest > lowest[owners] - self._window.size
        useful[batch.kv_indptr[1:][ragged.num_runs > 0] - 1] = True
        return np.flatnonzero(useful), np.bincount(owners[useful], minlength=len(lowest))

    def groups(self) -> Iterator[Integers]:
        """Sequences that share a segment: their numbers of queries, and within a factor of about two of pages,
        agree."""
        num_rows = self._ragged.num_rows
        classes = np.ceil(np.log2(np.maximum(num_rows, 1))).astype(np.int64)
        for size in np.unique(classes[num_rows > 0]):
            members = np.flatnonzero((classes == size) & (num_rows > 0))
            for group in members[:, None] if 2**size > TILE else self._split(members):
                most = max(1, MOST_PAGES // max(1, int(self._num_runs[group].max())))
                yield from (group[first : first + most] for first in range(0, len(group), most))

    def _split(self, members: Integers) -> Iterator[Integers]:
        """Splits members where padding to the longest sequence would waste more than about half."""
        runs = self._num_runs[members]
        if runs.max() <= 2 * runs.min() + 4:
            yield members
            return
        order = np.argsort(runs, kind="stable")
        members, runs = members[order], runs[order]
        while len(members):
            end = int(np.searchsorted(runs, 2 * runs[0] + 4, "right"))
            yield members[:end]
            members, runs = members[end:], runs[end:]

    def segment(self, members: Integers) -> Segment:
        count = np.arange(self._num_runs[members].max())
        last = self._num_runs[members, None] - 1
        runs = self._runs[self._first_run[members, None] + np.where(count <= last, count, 0)]
        pages = self._batch.kv_pages[runs].astype(np.int64)
        inside = self._inside(runs)
        ranks = self._ranks(runs, inside & (count <= last)[..., None])
        tiles = _Tiles(self, members, pages, ranks)
        longest = int(self._ragged.num_rows[members].max())
        cut = tuple(tiles.tile(first, min(TILE, longest - first)) for first in range(0, longest, TILE))
        sequences, slots = np.nonzero(~inside.reshape(len(runs), -1))
        return Segment(pages, (sequences, slots), cut)

    def _inside(self, runs: Integers) -> Booleans:
        """The slots [S, P, page_size] of the pages of `runs` [S, P] that are keys of the runs."""
        offsets = np.arange(self._page_size)
        begins, ends = self._batch.kv_begins[runs][..., None], self._batch.kv_ends[runs][..., None]
        inside: Booleans = (offsets >= begins) & (offsets < ends)
        return inside

    def _ranks(self, runs: Integers, inside: Booleans) -> Integers:
        """Rank of each slot [S, P * page_size] of the pages of `runs` [S, P]; NEVER for those not `inside`."""
        offsets, begins = np.arange(self._page_size), self._batch.kv_begins[runs][..., None]
        ranks = np.where(inside, self._ragged.first_rank[runs][..., None] + offsets - begins, NEVER)
        return ranks.reshape(len(runs), -1)

    def rows(self, members: Integers, first: int, num_queries: int) -> tuple[Integers, Integers]:
        """Indices of queries within their sequences [S, Q], with the last one repeated; and their rows."""
        queries = np.minimum(first + np.arange(num_queries), self._ragged.num_rows[members, None] - 1)
        return queries, self._first_row[members, None] + queries

    def last_visible(self, members: Integers, queries: Integers) -> Integers:
        """Rank of the last key that the causal rule shows to each of `queries` [S, Q]."""
        return (self._ragged.num_keys - self._ragged.num_rows)[members, None] + queries

    def masks(self, members: Integers) -> list[Booleans | None]:
        """Explicit masks of the members; an empty list if the batch has none."""
        if self._batch.mask_bits is None:
            return []
        return [mask_of(self._batch, self._ragged, int(member)) for member in members]

    def key_positions(self, pages: Integers) -> Integers | None:
        """Position of each slot [S, P * page_size]; None without a window."""
        if self._window is None:
            return None
        return self._window.positions[pages].reshape(len(pages), -1).astype(np.int64)

    def oldest_visible(self, rows: Integers) -> Integers:
        """The lowest position that the window shows to each of `rows`."""
        assert self._window is not None
        return self._batch.q_positions[rows].astype(np.int64) - self._window.size + 1


class _Tiles:
    """Makes the tiles of one segment."""

    def __init__(self, cutter: _Cutter, members: Integers, pages: Integers, ranks: Integers) -> None:
        self._cutter = cutter
        self._members = members
        self._num_pages = pages.shape[1]
        self._ranks = ranks
        self._positions = cutter.key_positions(pages)
        self._masks = cutter.masks(members)

    def tile(self, first: int, num_queries: int) -> Tile:
        queries, rows = self._cutter.rows(self._members, first, num_queries)
        last_visible = self._cutter.last_visible(self._members, queries)
        masked = any(mask is not None for mask in self._masks)
        useful = self._ranks != NEVER if masked else self._ranks <= last_visible.max(1, keepdims=True)
        oldest = None
        if self._positions is not None:
            oldest = self._cutter.oldest_visible(rows)
            useful &= self._positions >= oldest.min(1, keepdims=True)
        pages = self._useful_pages(useful)
        visible = self._allowed(queries, last_visible, pages)
        if oldest is not None and self._positions is not None:
            visible &= self._positions[:, None, pages] >= oldest[:, :, None]
        page_size = useful.shape[1] // self._num_pages
        return Tile(rows.reshape(-1), pages.start // page_size, visible, masked or oldest is not None)

    def _useful_pages(self, useful: Booleans) -> slice:
        """Slots from the first to the last page that a query of the tile may see; at least one page."""
        page_size = useful.shape[1] // self._num_pages
        found = np.flatnonzero(useful.any(0))
        if not len(found):
            return slice(0, page_size)
        return slice(int(found[0]) // page_size * page_size, (int(found[-1]) // page_size + 1) * page_size)

    def _allowed(self, queries: Integers, last_visible: Integers, slots: slice) -> Booleans:
        """The slots that the causal rule or the mask shows, bool [S, Q, slots]."""
        ranks = self._ranks[:, slots]
        visible = ranks[:, None, :] <= last_visible[:, :, None]
        for place, mask in enumerate(self._masks):
            if mask is not None:
                visible[place] = _look_up(mask[queries[place]], ranks[place])
        return visible


def _look_up(mask: Booleans, ranks: Integers) -> Booleans:
    """Columns of `mask` at `ranks`, False for slots without a key."""
    seen: Booleans = mask[:, np.minimum(ranks, mask.shape[1] - 1)] & (ranks != NEVER)
    return seen
