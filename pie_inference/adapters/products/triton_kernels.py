"""Triton kernels that multiply rows with the narrow matrices of their own adapters.

Matrices are found by their addresses in a table, so adapters lie anywhere, and a recorded launch finds those that are
loaded later. A tile is a few rows of one adapter; one that is empty ends at once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

KINDS: dict[torch.dtype, Any] = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}
"""Types of matrices."""


@triton.jit
def _tile(tiles, table, slots):
    """Slot of the adapter of this tile, its first row and the one behind its last, and its features."""
    tile = tl.program_id(0) * 3
    slot = tl.load(tiles + tile)
    return slot, tl.load(tiles + tile + 1), tl.load(tiles + tile + 2), tl.load(table + 2 * slots + slot)


@triton.jit
def _rows_of(rows, begin, end, TILE_ROWS: tl.constexpr):
    """Places of a tile's rows among all that have adapters, which of them are there, and the rows themselves."""
    place = begin + tl.arange(0, TILE_ROWS)
    there = place < end
    return place, there, tl.load(rows + place, mask=there, other=0).to(tl.int64)


@triton.jit(do_not_specialize=["slots"])
def shrink(
    hidden,  # float32 [SPLITS, rows, MOST_FEATURES]
    inputs,  # [T, INS]
    rows,  # int32 [rows]
    tiles,  # int32 [tiles, 3]: slot, begin, end
    table,  # int64 [3, slots]: addresses of down [features, INS] and up, which are multiples of 16; features
    slots,
    inputs_stride,
    hidden_stride,
    KIND: tl.constexpr,  # type of the matrices' numbers
    INS: tl.constexpr,
    MOST_FEATURES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_FEATURES: tl.constexpr,
    BLOCK_INS: tl.constexpr,
    SPLIT_INS: tl.constexpr,
):
    """The first product. Grid (tiles, blocks of features, parts of the inputs), whose sums are added by `expand`."""
    slot, begin, end, features = _tile(tiles, table, slots)
    feature = tl.program_id(1) * BLOCK_FEATURES + tl.arange(0, BLOCK_FEATURES)
    if begin < end and tl.program_id(1) * BLOCK_FEATURES < features:
        down = tl.multiple_of(tl.load(table + slot).to(tl.pointer_type(KIND)), 16)
        place, there, row = _rows_of(rows, begin, end, TILE_ROWS)
        first = tl.program_id(2) * SPLIT_INS
        sums = tl.zeros((TILE_ROWS, BLOCK_FEATURES), tl.float32)
        for start in range(first, min(first + SPLIT_INS, INS), BLOCK_INS):
            column = start + tl.arange(0, BLOCK_INS)
            inside = column < INS
            numbers = tl.load(
                inputs + row[:, None] * inputs_stride + column[None, :],
                mask=there[:, None] & inside[None, :],
                other=0.0,
            )
            weights = tl.load(
                down + feature[None, :] * INS + column[:, None],
                mask=(feature < features)[None, :] & inside[:, None],
                other=0.0,
            )
            sums = tl.dot(numbers.to(KIND), weights, sums, input_precision="ieee")
        to = hidden + tl.program_id(2) * hidden_stride + place[:, None] * MOST_FEATURES + feature[None, :]
        tl.store(to, sums, mask=there[:, None] & (feature < features)[None, :])


@triton.jit(do_not_specialize=["slots"])
def expand(
    results,  # [T, OUTS]
    hidden,
    rows,
    tiles,
    table,
    slots,
    results_stride,
    hidden_stride,
    KIND: tl.constexpr,
    OUTS: tl.constexpr,
    MOST_FEATURES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_FEATURES: tl.constexpr,
    BLOCK_OUTS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The second product, added to the results. Grid (tiles, blocks of outputs)."""
    slot, begin, end, features = _tile(tiles, table, slots)
    if begin < end and features > 0:
        up = tl.multiple_of(tl.load(table + slots + slot).to(tl.pointer_type(KIND)), 16)
        place, there, row = _rows_of(rows, begin, end, TILE_ROWS)
        column = tl.program_id(1) * BLOCK_OUTS + tl.arange(0, BLOCK_OUTS)
        inside = column < OUTS
        sums = tl.zeros((TILE_ROWS, BLOCK_OUTS), tl.float32)
        for start in range(0, features, BLOCK_FEATURES):
            feature = start + tl.arange(0, BLOCK_FEATURES)
            known = feature < features
            numbers = tl.zeros((TILE_ROWS, BLOCK_FEATURES), tl.float32)
            for split in range(SPLITS):
                numbers += tl.load(
                    hidden + split * hidden_stride + place[:, None] * MOST_FEATURES + feature[None, :],
                    mask=there[:, None] & known[None, :],
                    other=0.0,
                )
            weights = tl.load(
                up + feature[:, None] * OUTS + column[None, :], mask=known[:, None] & inside[None, :], other=0.0
            )
            sums = tl.dot(numbers.to(KIND), weights, sums, input_precision="ieee")
        to = results + row[:, None] * results_stride + column[None, :]
        both = there[:, None] & inside[None, :]
        added = tl.load(to, mask=both, other=0.0).to(tl.float32) + sums
        tl.store(to, added.to(results.dtype.element_ty), mask=both)
