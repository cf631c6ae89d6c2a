"""Cuts a `Forward` batch into tiles for the Triton kernels, with numpy only, once per batch, without work for each key.

The queries of a sequence are cut into tiles; the queries of a tile, times the heads of a group, fill the rows of one
matrix product. Sequences whose queries fit the smallest tile (decoding) form one group, longer ones (prefill) another;
each group has its own size of tile and number of splits.

Keys are given as pieces: a page, and 32 bits that say which of its slots are keys. If all sequences are dense, the
pages are enough. Consecutive runs in one page, in order, become one piece.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..protocol import Array, Forward
from .ragged import Integers, Ragged

SMALLEST_TILE = 16
"""Rows of the smallest matrix product of a GPU."""
LARGE_TILE = 64
SPLIT_SLOTS = 128
"""Least slots of a split, as in FlashInfer; a smaller split costs more than it saves."""
MOST_SPLITS = 64

Words = NDArray[np.int32]


@dataclass(frozen=True)
class Pieces:
    """P pages with keys, of all sequences in order."""

    start: Words  # [N + 1], pieces of each sequence
    page: Words  # [P]
    bits: Words | None  # [P], slots that are keys; None: the first `num_keys` slots of the pages of each sequence
    rank: Words | None  # [P], keys of the sequence before the piece


@dataclass(frozen=True)
class TileGroup:
    """Tiles of one size."""

    rows: int  # of the matrix product
    queries: int  # most queries in one tile
    sequence: Words  # [tiles]
    first: Words  # [tiles], first query, counted within the sequence
    end: Words  # [tiles], behind the last slot that a query may see

    @property
    def longest(self) -> int:
        return int(self.end.max(initial=0))


def tile_rows(group: int, smallest: int) -> int:
    """Rows of a tile that holds at least one query with the `group` heads that share its keys; a power of 2."""
    return max(smallest, 1 << (group - 1).bit_length())


def choose_splits(programs: int, longest: int, processors: int) -> int:
    """The number of programs that share the keys of a tile: enough to run twice as many programs as processors, unless
    there are too few keys for that."""
    wanted = -(-2 * processors // max(programs, 1))
    return max(1, min(wanted, longest // SPLIT_SLOTS, MOST_SPLITS))


def cut_pieces(batch: Forward, ragged: Ragged) -> Pieces:
    if batch.dense.all():
        return Pieces(batch.kv_indptr, batch.kv_pages, None, None)
    if not len(batch.kv_pages):
        return Pieces(batch.kv_indptr, batch.kv_pages, batch.kv_pages, batch.kv_pages)
    starts = np.flatnonzero(_begins_piece(batch, ragged))
    begins, ends = batch.kv_begins.astype(np.int64), batch.kv_ends.astype(np.int64)
    bits = np.bitwise_or.reduceat((1 << ends) - (1 << begins), starts)
    return Pieces(
        start=np.searchsorted(starts, batch.kv_indptr).astype(np.int32),
        page=batch.kv_pages[starts],
        bits=bits.astype(np.uint32).view(np.int32),
        rank=ragged.first_rank[starts].astype(np.int32),
    )


def _begins_piece(batch: Forward, ragged: Ragged) -> NDArray[np.bool_]:
    """bool [R]: runs that do not continue the run before them in the same page."""
    begins = np.ones(len(batch.kv_pages), np.bool_)
    begins[1:] = (batch.kv_pages[1:] != batch.kv_pages[:-1]) | (batch.kv_begins[1:] < batch.kv_ends[:-1])
    begins[batch.kv_indptr[:-1][ragged.num_runs > 0]] = True
    return begins


def cut_tiles(batch: Forward, ragged: Ragged, pieces: Pieces, page_size: int, group: int) -> list[TileGroup]:
    """Tiles that together have each query once; `group` heads share keys."""
    small, large = tile_rows(group, SMALLEST_TILE), tile_rows(group, LARGE_TILE)
    short = ragged.num_rows <= small // group
    has_rows = ragged.num_rows > 0
    groups = [(small, np.flatnonzero(has_rows & short)), (large, np.flatnonzero(has_rows & ~short))]
    ends = _Ends(batch, ragged, pieces, page_size)
    return [_cut(ragged, ends, members, rows, rows // group) for rows, members in groups if len(members)]


def _cut(ragged: Ragged, ends: _Ends, members: Integers, rows: int, queries: int) -> TileGroup:
    """The tiles of `members`. The largest come first, so that no large tile is left for the end."""
    counts = -(-ragged.num_rows[members] // queries)
    sequence = np.repeat(members, counts)
    first = (np.arange(len(sequence)) - np.repeat(counts.cumsum() - counts, counts)) * queries
    end = ends.of(sequence, np.minimum(first + queries, ragged.num_rows[sequence]))
    order = np.argsort(-end, kind="stable")
    return TileGroup(rows, queries, *(values[order].astype(np.int32) for values in (sequence, first, end)))


class _Ends:
    """For each query, the end of the slots that it may see."""

    def __init__(self, batch: Forward, ragged: Ragged, pieces: Pieces, page_size: int) -> None:
        self._ragged, self._pieces, self._page_size = ragged, pieces, page_size
        self._masked = has_mask(batch)

    def of(self, sequence: Integers, queries: Integers) -> Integers:
        """The end of the slots that the first `queries` queries of each sequence may see."""
        num_rows, num_keys = self._ragged.num_rows[sequence], self._ragged.num_keys[sequence]
        keys = np.where(self._masked[sequence], num_keys, num_keys - num_rows + queries)
        return keys if self._pieces.rank is None else self._slots(sequence, keys)

    def _slots(self, sequence: Integers, keys: Integers) -> Integers:
        """Slots of the pieces that hold the first `keys` keys, at least one."""
        assert self._pieces.rank is not None
        start = self._pieces.start.astype(np.int64)
        owner = np.repeat(np.arange(len(start) - 1), np.diff(start)) << 32
        found = np.searchsorted(owner | self._pieces.rank, (sequence << 32) | keys, "left")
        return (found - start[sequence]) * self._page_size


def has_mask(batch: Forward) -> NDArray[np.bool_]:
    """bool [N]: sequences with an explicit mask."""
    if batch.mask_indptr is None or batch.mask_bits is None:
        return np.zeros(len(batch.q_indptr) - 1, np.bool_)
    given: NDArray[np.bool_] = np.diff(batch.mask_indptr) > 0
    return given


def mask_starts(batch: Forward) -> Array:
    """int64 [N]: byte of `mask_bits` at which a sequence's mask starts; -1 if it has none."""
    assert batch.mask_indptr is not None
    return np.where(has_mask(batch), batch.mask_indptr[:-1], -1).astype(np.int64)
