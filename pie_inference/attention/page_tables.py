"""Turns the sequences of a `Forward` batch into the page tables that paged attention kernels take, with numpy only.

If a sequence fills its pages in order, the table lists pages. If it has holes, the table lists slots, and the kernel
works with pages of one slot: in the cache, slot `offset` of page `page` begins, in units of head_dim, at
`page * (2 * kv_heads * page_size) + offset` (its *place*), and heads are page_size units apart (`slot_views`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..kv_cache.pages import KvShape
from ..protocol import Array, Forward
from .ragged import Booleans, Integers, Ragged, mask_of

Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class PageTable:
    """S sequences with their queries; the queries belong to the last keys of each sequence."""

    sequences: Integers  # [S], numbers in the batch
    rows: Integers  # rows of the batch, sequence by sequence
    q_indptr: Int32  # [S + 1], into `rows`
    indptr: Int32  # [S + 1], into `indices`
    indices: Int32  # pages, or places if page_size is 1
    last_page_len: Int32  # [S], 1 to page_size
    num_keys: Int32  # [S]
    page_size: int

    def __len__(self) -> int:
        return len(self.sequences)


@dataclass(frozen=True)
class Masks:
    """Explicit masks of S sequences: row-major bits [queries, keys], lowest bit first; each sequence begins at a
    byte."""

    indptr: Int32  # [S + 1], bytes
    bits: NDArray[np.uint8]
    blind: Integers  # rows of the batch that see no key


def page_table(batch: Forward, ragged: Ragged, sequences: Integers, page_size: int) -> PageTable:
    """The table of dense `sequences`, by pages."""
    runs, indptr = take(batch.kv_indptr, sequences)
    rows, q_indptr = take(batch.q_indptr, sequences)
    last_page_len = batch.kv_ends[batch.kv_indptr[1:][sequences] - 1]
    num_keys = ragged.num_keys[sequences].astype(np.int32)
    return PageTable(
        sequences, rows, q_indptr, indptr, batch.kv_pages[runs], last_page_len.astype(np.int32), num_keys, page_size
    )


def slot_table(batch: Forward, ragged: Ragged, sequences: Integers, shape: KvShape) -> PageTable:
    """The table of any `sequences`, by slots."""
    runs, _ = take(batch.kv_indptr, sequences)
    rows, q_indptr = take(batch.q_indptr, sequences)
    first = places(batch.kv_pages[runs], batch.kv_begins[runs], shape)
    slots = ranges(first, batch.kv_ends[runs].astype(np.int64) - batch.kv_begins[runs])
    num_keys = ragged.num_keys[sequences].astype(np.int32)
    ones = np.ones(len(sequences), np.int32)
    return PageTable(sequences, rows, q_indptr, indptr_of(num_keys), slots.astype(np.int32), ones, num_keys, 1)


def places(pages: Array, offsets: Array, shape: KvShape) -> Integers:
    """Places of the slots at `offsets` of `pages`."""
    return pages.astype(np.int64) * (2 * shape.num_kv_heads * shape.page_size) + offsets


def slot_places(slots: Array, shape: KvShape) -> Int32:
    """Places of slots, given their numbers."""
    pages = slots // shape.page_size
    return places(pages, slots - pages * shape.page_size, shape).astype(np.int32)


def page_views(layer: Tensor, shape: KvShape) -> tuple[Tensor, Tensor]:
    """Keys and values of one layer of the cache, [num_pages, kv_heads, page_size, head_dim] each."""
    return layer[:, : shape.num_kv_heads], layer[:, shape.num_kv_heads :]


def slot_views(layer: Tensor, shape: KvShape) -> tuple[Tensor, Tensor]:
    """Keys and values of one layer of the cache by place, [places, kv_heads, 1, head_dim] each. Most indices overlap
    heads of other slots; only those that `places` returns begin at a slot."""
    heads, page, dim = shape.num_kv_heads, shape.page_size, shape.head_dim
    count = (len(layer) - 1) * 2 * heads * page + page
    size, stride = (count, heads, 1, dim), (dim, page * dim, dim, 1)
    begin = layer.storage_offset()
    return layer.as_strided(size, stride, begin), layer.as_strided(size, stride, begin + heads * page * dim)


def explicit_masks(batch: Forward, table: PageTable, ragged: Ragged) -> Masks:
    """The explicit masks of sequences that have one, unchanged."""
    assert batch.mask_indptr is not None
    assert batch.mask_bits is not None
    taken, indptr = take(batch.mask_indptr, table.sequences)
    blind = [_blind_rows(batch, mask_of(batch, ragged, int(one)), int(one)) for one in table.sequences]
    return Masks(indptr, batch.mask_bits[taken], np.concatenate(blind))


def windowed_masks(
    batch: Forward, table: PageTable, ragged: Ragged, positions: Array, window: int, page_size: int
) -> Masks:
    """The causal rule or the explicit mask of each sequence, combined with the window by `positions` of all slots."""
    masks = [_windowed(batch, ragged, int(one), positions, window, page_size) for one in table.sequences]
    packed = [np.packbits(mask, bitorder="little") for mask in masks]
    blind = [_blind_rows(batch, mask, int(one)) for mask, one in zip(masks, table.sequences, strict=True)]
    return Masks(indptr_of([len(bits) for bits in packed]), np.concatenate(packed), np.concatenate(blind))


def _windowed(batch: Forward, ragged: Ragged, sequence: int, positions: Array, window: int, page_size: int) -> Booleans:
    queries, keys = int(ragged.num_rows[sequence]), int(ragged.num_keys[sequence])
    mask = mask_of(batch, ragged, sequence)
    visible = np.tri(queries, keys, keys - queries, dtype=np.bool_) if mask is None else mask
    own = batch.q_positions[batch.q_indptr[sequence] : batch.q_indptr[sequence + 1]].astype(np.int64)
    inside: Booleans = positions[key_slots(batch, sequence, page_size)] > own[:, None] - window
    return visible & inside


def _blind_rows(batch: Forward, mask: Booleans | None, sequence: int) -> Integers:
    assert mask is not None
    blind: Integers = batch.q_indptr[sequence] + np.flatnonzero(~mask.any(1))
    return blind


def positions_follow_ranks(batch: Forward, ragged: Ragged, positions: Array, page_size: int) -> Booleans:
    """bool [N]: sequences whose keys have consecutive positions, so a window by rank equals one by position."""
    offsets = np.arange(page_size, dtype=np.int32)
    of_pages = positions.reshape(-1, page_size)[batch.kv_pages]  # [R, page_size]
    first_rank = (ragged.first_rank - batch.kv_begins).astype(np.int32)
    shifts = of_pages - first_rank[:, None] - offsets  # position minus rank: the same for all keys of such a sequence
    inside = (offsets >= batch.kv_begins[:, None]) & (offsets < batch.kv_ends[:, None])
    owners = np.repeat(np.arange(len(ragged.num_runs)), ragged.num_runs)
    shift = _shift_of_last_key(batch, ragged)
    odd = (inside & (shifts != shift[owners, None])).any(1)
    follow: Booleans = np.bincount(owners[odd], minlength=len(ragged.num_runs)) == 0
    return follow


def _shift_of_last_key(batch: Forward, ragged: Ragged) -> Int32:
    """Position minus rank of the last key of each sequence, from its last query; any number without queries."""
    last_row = np.maximum(batch.q_indptr[1:] - 1, 0)
    position = batch.q_positions[last_row] if len(batch.q_positions) else np.zeros(len(last_row), np.int32)
    shift: Int32 = (position - (ragged.num_keys - 1)).astype(np.int32)
    return shift


def key_slots(batch: Forward, sequence: int, page_size: int) -> Integers:
    """The slots of a sequence's keys, in order."""
    runs = slice(batch.kv_indptr[sequence], batch.kv_indptr[sequence + 1])
    begins = batch.kv_begins[runs].astype(np.int64)
    return ranges(batch.kv_pages[runs].astype(np.int64) * page_size + begins, batch.kv_ends[runs] - begins)


def take(indptr: Array, parts: Integers) -> tuple[Integers, Int32]:
    """Indices of the elements of `parts`, where `indptr` divides the elements into parts; and their own indptr."""
    lengths = indptr[1:][parts] - indptr[:-1][parts]
    return ranges(indptr[:-1][parts], lengths), indptr_of(lengths)


def ranges(starts: Array, lengths: Array) -> Integers:
    """`lengths[0]` numbers from starts[0] on, then `lengths[1]` numbers from starts[1] on, and so on."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts.astype(np.int64) - (ends - lengths), lengths) + np.arange(total)


def indptr_of(lengths: Array | list[int]) -> Int32:
    """Offsets of parts of these lengths, and the offset behind the last part."""
    indptr = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=indptr[1:])
    return indptr
