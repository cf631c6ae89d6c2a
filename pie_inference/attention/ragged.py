"""Checks the ragged arrays of a `Forward` batch. Every backend begins with this."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import BatchError
from ..protocol import Array, Forward, check_integers

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True)
class Ragged:
    """N sequences with R runs of keys. A key's *rank* is its index among the keys of its sequence."""

    num_rows: Integers  # [N]
    num_runs: Integers  # [N]
    num_keys: Integers  # [N]
    first_rank: Integers  # [R], rank of a run's first key


def check(batch: Forward, page_size: int, num_pages: int) -> Ragged:
    """The lengths of a batch. Raises BatchError if the batch contradicts itself or a cache of `num_pages` pages.
    Backends do not check again, and kernels would read and write at any wrong address."""
    num_rows = _lengths(batch.q_indptr, len(batch.q_slots), "q_indptr")
    num_runs = _lengths(batch.kv_indptr, len(batch.kv_pages), "kv_indptr")
    _check_sizes(batch)
    _check_slots(batch, num_pages * page_size)
    _check_runs(batch, page_size, num_pages)
    before = np.zeros(len(batch.kv_pages) + 1, np.int64)
    np.subtract(batch.kv_ends, batch.kv_begins, out=before[1:]).cumsum(out=before[1:])
    num_keys = before[batch.kv_indptr[1:]] - before[batch.kv_indptr[:-1]]
    if (num_rows > num_keys).any():
        number = int(np.argmax(num_rows > num_keys))
        raise BatchError(f"a sequence has more queries than keys: {num_rows[number]} queries, {num_keys[number]} keys")
    _check_masks(batch, num_rows * num_keys)
    return Ragged(num_rows, num_runs, num_keys, before[:-1] - np.repeat(before[batch.kv_indptr[:-1]], num_runs))


def _lengths(indptr: Array, count: int, name: str) -> Integers:
    check_integers(indptr, name)
    lengths = np.diff(indptr).astype(np.int64)
    if len(indptr) < 1 or indptr[0] != 0 or indptr[-1] != count or lengths.min(initial=0) < 0:
        raise BatchError(f"{name} must run from 0 to {count}, its number of elements, and never decrease")
    return lengths


def _check_sizes(batch: Forward) -> None:
    if len(batch.q_indptr) != len(batch.kv_indptr):
        raise BatchError(f"{len(batch.q_indptr) - 1} sequences of queries, {len(batch.kv_indptr) - 1} of keys")
    if len(batch.q_positions) != len(batch.q_slots):
        raise BatchError(f"{len(batch.q_slots)} KV slots for new keys, {len(batch.q_positions)} positions")
    if not len(batch.kv_pages) == len(batch.kv_begins) == len(batch.kv_ends):
        raise BatchError("the arrays of runs differ in length")


def _check_slots(batch: Forward, num_slots: int) -> None:
    """Checks slots and positions of new keys. As unsigned numbers, negative ones are large."""
    slots, positions = batch.q_slots, batch.q_positions
    if slots.view(np.uint32).max(initial=0) >= max(num_slots, 1):
        wrong = slots[slots.view(np.uint32).argmax()]
        raise BatchError(f"KV slot {wrong} does not exist; they are 0 to {num_slots - 1}")
    if (lowest := positions.min(initial=0)) < 0:
        raise BatchError(f"position {lowest} is negative")


def _check_runs(batch: Forward, page_size: int, num_pages: int) -> None:
    pages, begins, ends = batch.kv_pages, batch.kv_begins, batch.kv_ends
    if pages.view(np.uint32).max(initial=0) >= max(num_pages, 1):
        unknown = pages[pages.view(np.uint32).argmax()]
        raise BatchError(f"page {unknown} does not exist; they are 0 to {num_pages - 1}")
    wrong = (begins < 0) | (ends < begins) | (ends > page_size)
    if wrong.any():
        run = int(wrong.argmax())
        raise BatchError(f"keys {begins[run]} to {ends[run]} leave their page of {page_size} slots")


def _check_masks(batch: Forward, num_bits: Integers) -> None:
    """Checks that each sequence has a whole mask or none."""
    if batch.mask_indptr is None or batch.mask_bits is None:
        return
    lengths = _lengths(batch.mask_indptr, len(batch.mask_bits), "mask_indptr")
    if len(lengths) != len(num_bits):
        raise BatchError(f"{len(num_bits)} sequences, {len(lengths)} masks")
    wrong = (lengths != 0) & (lengths != -(-num_bits // 8))
    if wrong.any():
        number = int(wrong.argmax())
        raise BatchError(
            f"the mask has {lengths[number]} bytes, not one bit for each of {num_bits[number]} pairs of query and key"
        )


def mask_of(batch: Forward, ragged: Ragged, sequence: int) -> Booleans | None:
    """The explicit mask [queries, keys] of a sequence; None if it has none."""
    indptr, bits = batch.mask_indptr, batch.mask_bits
    if indptr is None or bits is None or indptr[sequence] == indptr[sequence + 1]:
        return None
    shape = (int(ragged.num_rows[sequence]), int(ragged.num_keys[sequence]))
    own = bits[indptr[sequence] : indptr[sequence + 1]].astype(np.uint8)
    return np.unpackbits(own, count=shape[0] * shape[1], bitorder="little").reshape(shape).astype(np.bool_)
