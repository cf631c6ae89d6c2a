"""How a `Forward` batch is cut into dense pieces: numpy only, once per batch.

A *segment* is a set of sequences of similar length whose pages are gathered together; a *tile* is a block of at most
`TILE` queries of each of them. A decode batch is one segment with one tile of one query each; a long prefill is a
segment of its own with many tiles. Shorter sequences of a segment repeat their last page and their last query; what a
query may see is a boolean block, from the causal rule or the explicit mask. Holes in the keys are invisible slots of
pages. A key's *rank* is its place among its sequence's keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import BatchError
from ..protocol import Array, Forward

TILE = 64
"""Queries in one product. Chunks of 64 measured 2 to 10 times as fast as one product over a long prefill."""
NEVER = np.iinfo(np.int64).max

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True)
class Tile:
    """Q queries of each of S sequences."""

    rows: Integers  # [S * Q], rows of the batch
    num_pages: int  # P: only so many pages of the segment are looked at
    visible: Booleans  # [S, Q, P * page_size]
    masked: bool  # whether a query may see nothing at all


@dataclass(frozen=True)
class Segment:
    """S sequences whose keys are gathered together."""

    pages: Integers  # [S, P]
    tiles: tuple[Tile, ...]


def cut(batch: Forward, page_size: int) -> list[Segment]:
    """Segments that together hold every row once. Raises BatchError where the batch contradicts itself."""
    ragged = _Ragged(batch, page_size)
    return [ragged.segment(members) for members in ragged.groups()]


class _Ragged:
    """The ragged arrays of a batch, with what follows from them."""

    def __init__(self, batch: Forward, page_size: int) -> None:
        self._batch = batch
        self._page_size = page_size
        self._first_row, self._num_rows = _starts_and_lengths(batch.q_indptr)
        self._first_run, self._num_runs = _starts_and_lengths(batch.kv_indptr)
        run_lengths = batch.kv_ends.astype(np.int64) - batch.kv_begins
        before = np.concatenate(([0], np.cumsum(run_lengths)))
        self._num_keys = before[batch.kv_indptr[1:]] - before[batch.kv_indptr[:-1]]
        self._first_rank = before[:-1] - np.repeat(before[batch.kv_indptr[:-1]], self._num_runs)
        self._check(run_lengths)

    def _check(self, run_lengths: Integers) -> None:
        if (self._num_rows > self._num_keys).any():
            raise BatchError("a sequence has more queries than keys")
        begins, ends = self._batch.kv_begins, self._batch.kv_ends
        if len(begins) and (run_lengths.min() < 0 or begins.min() < 0 or ends.max() > self._page_size):
            raise BatchError(f"a run of keys leaves its page of {self._page_size} slots")

    def groups(self) -> Iterator[Integers]:
        """Sequences that share a segment: alike in queries and, within a factor of about two, in pages."""
        classes = np.ceil(np.log2(np.maximum(self._num_rows, 1))).astype(np.int64)
        for size in np.unique(classes[self._num_rows > 0]):
            members = np.flatnonzero((classes == size) & (self._num_rows > 0))
            yield from members[:, None] if 2**size > TILE else self._split(members)

    def _split(self, members: Integers) -> Iterator[Integers]:
        """Cuts where padding to the longest sequence would waste more than about half."""
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
        runs = self._first_run[members, None] + np.minimum(count, last)
        ranks = self._ranks(runs, count <= last)
        longest = int(self._num_rows[members].max())
        tiles = (self._tile(members, ranks, first, min(TILE, longest - first)) for first in range(0, longest, TILE))
        return Segment(self._batch.kv_pages[runs].astype(np.int64), tuple(tiles))

    def _ranks(self, runs: Integers, valid: Booleans) -> Integers:
        """Rank of each slot [S, P * page_size] of the pages of `runs` [S, P]; NEVER where it is no key."""
        offsets = np.arange(self._page_size)
        begins, ends = self._batch.kv_begins[runs][..., None], self._batch.kv_ends[runs][..., None]
        inside = (offsets >= begins) & (offsets < ends) & valid[..., None]
        ranks = np.where(inside, self._first_rank[runs][..., None] + offsets - begins, NEVER)
        return ranks.reshape(len(runs), -1)

    def _tile(self, members: Integers, ranks: Integers, first: int, num_queries: int) -> Tile:
        queries = np.minimum(first + np.arange(num_queries), self._num_rows[members, None] - 1)
        last_visible = (self._num_keys - self._num_rows)[members, None] + queries
        masks = [self._explicit_mask(int(member)) for member in members] if self._batch.mask_bits is not None else []
        masked = any(mask is not None for mask in masks)
        if not masked:
            ranks = self._drop_future_pages(ranks, int(last_visible.max()))
        visible = ranks[:, None, :] <= last_visible[:, :, None]
        for place, mask in enumerate(masks):
            if mask is not None:
                visible[place] = _look_up(mask[queries[place]], ranks[place])
        rows = (self._first_row[members, None] + queries).reshape(-1)
        return Tile(rows, visible.shape[-1] // self._page_size, visible, masked)

    def _drop_future_pages(self, ranks: Integers, last_visible: int) -> Integers:
        """Without the pages at the end that no query of the tile sees."""
        useful = np.flatnonzero((ranks <= last_visible).any(0))
        return ranks[:, : -(-(int(useful[-1]) + 1) // self._page_size) * self._page_size]

    def _explicit_mask(self, member: int) -> Booleans | None:
        """The mask [queries, keys] of a sequence, if it has one."""
        indptr, bits = self._batch.mask_indptr, self._batch.mask_bits
        if indptr is None or bits is None or indptr[member] == indptr[member + 1]:
            return None
        shape = (int(self._num_rows[member]), int(self._num_keys[member]))
        own = bits[indptr[member] : indptr[member + 1]].astype(np.uint8)
        if len(own) != -(-shape[0] * shape[1] // 8):
            raise BatchError(f"the mask of sequence {member} has {len(own)} bytes, not one bit for each of {shape}")
        return np.unpackbits(own, count=shape[0] * shape[1], bitorder="little").reshape(shape).astype(np.bool_)


def _look_up(mask: Booleans, ranks: Integers) -> Booleans:
    """Columns of `mask` at `ranks`, False where there is no key."""
    seen: Booleans = mask[:, np.minimum(ranks, mask.shape[1] - 1)] & (ranks != NEVER)
    return seen


def _starts_and_lengths(indptr: Array) -> tuple[Integers, Integers]:
    wide = indptr.astype(np.int64)
    return wide[:-1], np.diff(wide)
