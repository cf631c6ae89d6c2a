"""Masks of forwards, as the model without weights reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pie_inference.protocol import Forward


def explicit_mask(batch: Forward, n: int, queries: int, keys: int) -> NDArray[np.bool_] | None:
    """The boolean mask [queries, keys] of sequence n, if it has one."""
    if batch.mask_indptr is None or batch.mask_bits is None or batch.mask_indptr[n] == batch.mask_indptr[n + 1]:
        return None
    bits = batch.mask_bits[batch.mask_indptr[n] : batch.mask_indptr[n + 1]].astype(np.uint8)
    if len(bits) != -(-queries * keys // 8):
        raise ValueError(f"a mask has {len(bits)} bytes for {queries} x {keys} bits")
    return np.unpackbits(bits, count=queries * keys, bitorder="little").reshape(queries, keys).astype(np.bool_)


def range_mask(batch: Forward, n: int, queries: int, keys: int) -> NDArray[np.bool_]:
    """The mask [queries, keys] of sequence n, from the ranges that its queries see."""
    assert batch.range_indptr is not None
    assert batch.range_rows is not None
    assert batch.range_begins is not None
    assert batch.range_ends is not None
    mask = np.zeros((queries, keys), np.bool_)
    for place in range(batch.range_indptr[n], batch.range_indptr[n + 1]):
        begin, end = batch.range_begins[place], batch.range_ends[place]
        if not 0 <= begin <= end <= keys:
            raise ValueError(f"a query sees keys {begin} to {end} of {keys}")
        mask[batch.range_rows[place], begin:end] = True
    return mask
