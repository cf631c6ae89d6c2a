"""Triton kernels that multiply rows by quantized weights; `triton_linear` makes their arguments.

A program computes a block of rows times a block of outputs. Weights are converted to the rows' format tile by tile, in
registers, so that only their 4 or 8 bits are read from memory. Products are summed in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def multiply_bytes(
    rows,  # [count, ins]
    values,  # int8 or float8 [outs, ins]
    scales,  # [outs], or in groups [outs, groups]
    bias,  # [outs]; not read without HAS_BIAS
    output,  # [count, outs]
    count,
    outs,
    ins,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    GROUP: tl.constexpr,  # inputs that share a scale, a multiple of INS; 0: a row has one
    INS: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    out = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    there, wanted = row < count, out < outs
    sums = tl.zeros((ROWS, OUTS), tl.float32)
    for first in range(0, ins, INS):
        column = first + tl.arange(0, INS)
        inside = column < ins
        left = tl.load(rows + row.to(tl.int64)[:, None] * ins + column[None, :], there[:, None] & inside[None, :], 0.0)
        weights = values + out.to(tl.int64)[None, :] * ins + column[:, None]
        right = tl.load(weights, inside[:, None] & wanted[None, :], 0.0)
        factors = right.to(tl.float32).to(left.dtype)
        if GROUP:
            of_group = out.to(tl.int64) * tl.cdiv(ins, GROUP) + first // GROUP
            scale = tl.load(scales + of_group, wanted, 0.0).to(tl.float32)
            sums += tl.dot(left, factors, input_precision="ieee") * scale[None, :]
        else:
            sums = tl.dot(left, factors, sums, input_precision="ieee")
    if not GROUP:
        sums *= tl.load(scales + out, wanted, 0.0).to(tl.float32)[None, :]
    if HAS_BIAS:
        sums += tl.load(bias + out, wanted, 0.0).to(tl.float32)[None, :]
    place = output + row.to(tl.int64)[:, None] * outs + out[None, :]
    tl.store(place, sums.to(output.dtype.element_ty), there[:, None] & wanted[None, :])


@triton.jit(do_not_specialize=["count"])
def multiply_nibbles(
    rows,  # [count, ins]
    values,  # uint8 [outs, ins / 2], even inputs in the low half
    scales,  # [outs, groups]
    zeros,  # [outs, groups]; not read if ZEROS is 0
    bias,  # [outs]; not read without HAS_BIAS
    output,  # [count, outs]
    count,
    outs,
    ins,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    ZEROS: tl.constexpr,  # 0: none, 1: they are added to weights, 2: they are taken from values
    GROUP: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    out = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    there, wanted = row < count, out < outs
    half: tl.constexpr = GROUP // 2
    sums = tl.zeros((ROWS, OUTS), tl.float32)
    for group in range(ins // GROUP):
        byte = group * half + tl.arange(0, half)
        left = rows + row.to(tl.int64)[:, None] * ins + 2 * byte[None, :]
        even = tl.load(left, there[:, None], 0.0)
        odd = tl.load(left + 1, there[:, None], 0.0)
        packed = tl.load(values + out.to(tl.int64)[None, :] * (ins // 2) + byte[:, None], wanted[None, :], 0)
        low = (packed & 15).to(tl.int8) - 8
        high = (packed >> 4).to(tl.int8) - 8
        part = tl.dot(even, low.to(tl.float32).to(even.dtype), input_precision="ieee")
        part = tl.dot(odd, high.to(tl.float32).to(odd.dtype), part, input_precision="ieee")
        total = tl.sum(even.to(tl.float32), 1) + tl.sum(odd.to(tl.float32), 1)
        of_group = out.to(tl.int64) * (ins // GROUP) + group
        scale = tl.load(scales + of_group, wanted, 0.0).to(tl.float32)
        sums += part * scale[None, :]
        if ZEROS:
            zero = tl.load(zeros + of_group, wanted, 0.0).to(tl.float32)
            added = zero if ZEROS == 1 else (8 - zero) * scale
            sums += total[:, None] * added[None, :]
    if HAS_BIAS:
        sums += tl.load(bias + out, wanted, 0.0).to(tl.float32)[None, :]
    place = output + row.to(tl.int64)[:, None] * outs + out[None, :]
    tl.store(place, sums.to(output.dtype.element_ty), there[:, None] & wanted[None, :])
