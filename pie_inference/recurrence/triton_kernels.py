"""Triton kernels for `triton_recurrences`. All compute in float32 and round once."""

from __future__ import annotations

import triton
import triton.language as tl

from ..ops.triton_kernels import sigmoid


@triton.jit
def _input(rows, state, row, begin, channel, inside, row_stride, channels, PAST: tl.constexpr):
    """The input of a row. One before the first row, `begin`, is in the state that the sequence begins with."""
    here = tl.load(rows + row * row_stride + channel, mask=inside & (row >= begin), other=0.0).to(tl.float32)
    before = row - begin + PAST
    kept = inside & (row < begin) & (before >= 0)
    return here + tl.load(state + before * channels + channel, mask=kept, other=0.0)


@triton.jit(do_not_specialize=["channels", "row_stride", "slot_stride"])
def convolve(
    result, rows, taps, states, starts, reads, channels, row_stride, slot_stride,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The convolution of each channel, then SiLU. Grid (sequences, blocks of ROWS rows, blocks of channels)."""
    begin = tl.load(starts + tl.program_id(0))
    end = tl.load(starts + tl.program_id(0) + 1)
    slot = tl.load(reads + tl.program_id(0))
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    known = inside & (slot >= 0)
    first = begin + tl.program_id(1) * ROWS
    for row in range(first, tl.minimum(first + ROWS, end)):
        total = tl.zeros([BLOCK], tl.float32)
        for tap in tl.static_range(WIDTH):
            past = row - (WIDTH - 1) + tap
            read = tl.where(past >= begin, inside, known)
            number = _input(
                rows, states + slot * slot_stride, past, begin, channel, read, row_stride, channels, WIDTH - 1
            )
            total += number * tl.load(taps + tap * channels + channel, mask=inside, other=0.0)
        total = total * sigmoid(total)
        tl.store(result + row * channels + channel, total.to(result.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["channels", "row_stride", "slot_stride"])
def keep_inputs(
    rows, states, starts, reads, writes, channels, row_stride, slot_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Leaves the last inputs in the slots of rows that have one. Grid (sequences, blocks of channels).

    A slot may be the one that is read: each thread moves its own channels, the oldest input first.
    """
    begin = tl.load(starts + tl.program_id(0))
    end = tl.load(starts + tl.program_id(0) + 1)
    slot = tl.load(reads + tl.program_id(0))
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    known = inside & (slot >= 0)
    for row in range(begin, end):
        target = tl.load(writes + row)
        if target >= 0:
            for number in tl.static_range(WIDTH - 1):
                past = row - (WIDTH - 2) + number
                read = tl.where(past >= begin, inside, known)
                kept = _input(
                    rows, states + slot * slot_stride, past, begin, channel, read, row_stride, channels, WIDTH - 1
                )
                tl.store(states + target * slot_stride + number * channels + channel, kept, mask=inside)


@triton.jit(do_not_specialize=["heads", "share", "query_stride", "key_stride", "value_stride", "slot_stride"])
def gated_delta(
    result, query, key, value, decay, beta, states, starts, reads, writes, heads, share,
    query_stride, key_stride, value_stride, slot_stride, scale,
    K: tl.constexpr, V: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gated delta rule, row by row, for BLOCK columns of a state. Grid (blocks of columns, heads, sequences)."""
    begin = tl.load(starts + tl.program_id(2))
    end = tl.load(starts + tl.program_id(2) + 1)
    slot = tl.load(reads + tl.program_id(2))
    head = tl.program_id(1)
    line = tl.arange(0, PADDED)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_line, is_column = line < K, column < V
    place = states + (head * K + line[:, None]) * V + column[None, :]
    inside = is_line[:, None] & is_column[None, :]
    state = tl.load(place + slot * slot_stride, mask=inside & (slot >= 0), other=0.0)
    shared = head // share * K + line
    for row in range(begin, end):
        keys = tl.load(key + row * key_stride + shared, mask=is_line, other=0.0).to(tl.float32)
        queries = tl.load(query + row * query_stride + shared, mask=is_line, other=0.0).to(tl.float32)
        keys *= tl.rsqrt(tl.sum(keys * keys, 0) + 1e-6)
        queries *= tl.rsqrt(tl.sum(queries * queries, 0) + 1e-6) * scale
        wanted = tl.load(value + row * value_stride + head * V + column, mask=is_column, other=0.0).to(tl.float32)
        state *= tl.exp(tl.load(decay + row * heads + head))
        change = tl.load(beta + row * heads + head) * (wanted - tl.sum(state * keys[:, None], 0))
        state += keys[:, None] * change[None, :]
        found = tl.sum(state * queries[:, None], 0)
        tl.store(result + (row * heads + head) * V + column, found.to(result.dtype.element_ty), mask=is_column)
        target = tl.load(writes + row)
        if target >= 0:
            tl.store(place + target * slot_stride, state, mask=inside)
