"""Masks of sequences whose queries see keys by position, made where the positions of all slots are known, or by ranges.

Kernels know the causal rule and explicit masks. Few batches have keys that only some of their queries may see by
position, or ranges of keys for each query, so these get a mask: a bit for each query and key, and little memory beside
that.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ..errors import BatchError
from ..kv_cache.pages import KvCache
from ..protocol import Array, Forward, check_indptr
from .page_tables import key_slots
from .ragged import Ragged, check

MOST_PAIRS = 1 << 18
"""Pairs of query and key that are looked at together, a byte each; so many stay in a cache of the processor."""


def with_masks(batch: Forward, cache: KvCache) -> Forward:
    """The batch with masks in place of `position_keys` and of ranges. Raises BatchError."""
    if batch.position_keys is None and batch.masked is None:
        return batch
    ragged = check(batch, cache.shape.page_size, cache.num_pages)
    if batch.mask_bits is not None:
        raise BatchError("a batch has both explicit masks and keys that are seen by position or by ranges")
    if batch.position_keys is not None:
        _check_counts(batch, ragged)
    if batch.masked is not None:
        _check_ranges(batch, ragged)
    positions, before = cache.positions, cache.positions[batch.q_slots]
    positions[batch.q_slots] = batch.q_positions  # as they will be once the batch is planned
    try:
        masks = [_mask(batch, ragged, n, positions, cache.shape.page_size) for n in range(batch.count())]
    finally:
        positions[batch.q_slots] = before
    ends = np.cumsum([0, *map(len, masks)], dtype=np.int64)
    return msgspec.structs.replace(
        batch, position_keys=None, masked=None, mask_indptr=ends, mask_bits=np.concatenate(masks)
    )


def _check_counts(batch: Forward, ragged: Ragged) -> None:
    counts = batch.position_keys
    assert counts is not None
    if len(counts) != len(ragged.num_keys):
        raise BatchError(f"position_keys has {len(counts)} elements for {len(ragged.num_keys)} sequences")
    wrong = (counts < 0) | (counts > ragged.num_keys - ragged.num_rows)
    if wrong.any():
        n = int(wrong.argmax())
        older = ragged.num_keys[n] - ragged.num_rows[n]
        raise BatchError(f"{counts[n]} keys are seen by position, the sequence has {older} older ones")


def _check_ranges(batch: Forward, ragged: Ragged) -> None:
    masked, indptr, rows = batch.masked, batch.range_indptr, batch.range_rows
    begins, ends = batch.range_begins, batch.range_ends
    if masked is None or indptr is None or rows is None or begins is None or ends is None:
        raise BatchError("of the arrays of ranges some are missing")
    if len(masked) != len(ragged.num_keys) or not len(rows) == len(begins) == len(ends):
        raise BatchError(f"the arrays of ranges do not fit {len(ragged.num_keys)} sequences")
    check_indptr(indptr, len(masked), len(rows), "range_indptr")
    owners = np.repeat(np.arange(len(masked)), np.diff(indptr))
    wrong = (rows < 0) | (rows >= ragged.num_rows[owners])
    wrong |= (begins < 0) | (begins > ends) | (ends > ragged.num_keys[owners])
    if wrong.any():
        n = int(wrong.argmax())
        raise BatchError(f"range {begins[n]} to {ends[n]} of query {rows[n]} is not within its sequence")


def _mask(batch: Forward, ragged: Ragged, n: int, positions: Array, page_size: int) -> Array:
    """Packed bits [queries, keys] of sequence n; none if it needs no mask."""
    if batch.masked is not None and batch.masked[n]:
        return _mask_by_ranges(batch, ragged, n)
    if batch.position_keys is not None and batch.position_keys[n]:
        return _mask_by_position(batch, ragged, n, positions, page_size)
    return np.zeros(0, np.uint8)


def _mask_by_ranges(batch: Forward, ragged: Ragged, n: int) -> Array:
    assert batch.range_indptr is not None
    assert batch.range_rows is not None
    assert batch.range_begins is not None
    assert batch.range_ends is not None
    some = slice(batch.range_indptr[n], batch.range_indptr[n + 1])
    queries, begins, ends = batch.range_rows[some], batch.range_begins[some], batch.range_ends[some]
    rows, keys = int(ragged.num_rows[n]), int(ragged.num_keys[n])
    at_once = max(8, MOST_PAIRS // keys // 8 * 8)  # rows that fill whole bytes
    pieces = []
    for first in range(0, rows, at_once):
        count = min(at_once, rows - first)
        own = (queries >= first) & (queries < first + count)
        steps = np.zeros((count, keys + 1), np.int32)
        np.add.at(steps, (queries[own] - first, begins[own]), 1)
        np.add.at(steps, (queries[own] - first, ends[own]), -1)
        pieces.append(np.packbits(steps.cumsum(1)[:, :keys] > 0, bitorder="little"))
    return np.concatenate(pieces)


def _mask_by_position(batch: Forward, ragged: Ragged, n: int, positions: Array, page_size: int) -> Array:
    assert batch.position_keys is not None
    count = int(batch.position_keys[n])
    rows, keys = int(ragged.num_rows[n]), int(ragged.num_keys[n])
    queries = batch.q_positions[batch.q_indptr[n] : batch.q_indptr[n + 1]]
    older = positions[key_slots(batch, n, page_size)[:count]]
    late = np.flatnonzero(older >= queries.min())  # others are seen by all
    at_once = max(8, MOST_PAIRS // keys // 8 * 8)  # rows that fill whole bytes
    pieces = []
    for first in range(0, rows, at_once):
        own = np.arange(first, min(first + at_once, rows))
        seen = np.ones((len(own), keys), np.bool_)
        seen[:, late] = older[late] < queries[own, None]
        seen[:, keys - rows :] = np.arange(rows) <= own[:, None]
        pieces.append(np.packbits(seen, bitorder="little"))
    return np.concatenate(pieces)
