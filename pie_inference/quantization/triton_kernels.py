"""Triton kernels that multiply rows by quantized weights; `triton_linear` makes their arguments.

A program computes a block of rows times a block of outputs. Weights are converted to the rows' format tile by tile, in
registers, so that only their 4 or 8 bits are read from memory. Products are summed in float32.

Weights may be those of several layers, one below the other; then rows are sorted by the layers that multiply them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def multiply_bytes(
    rows,  # [count, ins]
    ends,  # int32 [layers]: where the rows of each layer end; not read if LAYERS is 0
    values,  # int8 or float8 [layers * outs, ins]
    scales,  # [layers * outs], or in groups [layers * outs, groups]
    zeros,  # int8 as scales; they are taken from values; not read without HAS_ZEROS
    bias,  # [outs]; not read without HAS_BIAS
    output,  # [count, outs]
    count,
    outs,
    ins,
    layers,
    HAS_BIAS: tl.constexpr,
    LAYERS: tl.constexpr,  # power of two that is at least `layers`; 0: there is one layer, which has all rows
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    GROUP: tl.constexpr,  # inputs that share a scale, a multiple of INS; 0: a row has one
    INS: tl.constexpr,
):
    layer, first_row, end = _block_of_rows(ends, count, layers, LAYERS, ROWS)
    if first_row >= end:
        return
    row, out = first_row + tl.arange(0, ROWS), tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    there, wanted, stored = row < end, out < outs, layer.to(tl.int64) * outs + out
    sums = tl.zeros((ROWS, OUTS), tl.float32)
    for first in range(0, ins, INS):
        column = first + tl.arange(0, INS)
        inside = column < ins
        left = tl.load(rows + row.to(tl.int64)[:, None] * ins + column[None, :], there[:, None] & inside[None, :], 0.0)
        right = tl.load(values + stored[None, :] * ins + column[:, None], inside[:, None] & wanted[None, :], 0.0)
        of_group = stored
        if GROUP:
            of_group = stored * tl.cdiv(ins, GROUP) + first // GROUP
        numbers = right.to(tl.float32)
        if HAS_ZEROS:  # the difference has up to 8 bits and a sign: exact in bfloat16
            numbers -= tl.load(zeros + of_group, wanted, 0).to(tl.float32)[None, :]
        factors = numbers.to(left.dtype)
        if GROUP:
            scale = tl.load(scales + of_group, wanted, 0.0).to(tl.float32)
            sums += tl.dot(left, factors, input_precision="ieee") * scale[None, :]
        else:
            sums = tl.dot(left, factors, sums, input_precision="ieee")
    if not GROUP:
        sums *= tl.load(scales + stored, wanted, 0.0).to(tl.float32)[None, :]
    _store(sums, bias, output, row, there, out, wanted, outs, HAS_BIAS)


@triton.jit(do_not_specialize=["count"])
def multiply_nibbles(
    rows,  # [count, ins]
    ends,  # as above
    values,  # uint8 [layers * outs, ins / 2], even inputs in the low half
    scales,  # [layers * outs], or in groups [layers * outs, groups]
    zeros,  # as scales; not read if ZEROS is 0
    bias,  # [outs]; not read without HAS_BIAS
    output,  # [count, outs]
    count,
    outs,
    ins,
    layers,
    HAS_BIAS: tl.constexpr,
    LAYERS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    ZEROS: tl.constexpr,  # 0: none, 1: they are added to weights, 2: they are taken from values
    GROUP: tl.constexpr,  # inputs that share a scale, a multiple of twice PAIRS; 0: a row has one
    PAIRS: tl.constexpr,  # inputs that are multiplied at a time, by twos
):
    layer, first_row, end = _block_of_rows(ends, count, layers, LAYERS, ROWS)
    if first_row >= end:
        return
    row, out = first_row + tl.arange(0, ROWS), tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    there, wanted, stored = row < end, out < outs, layer.to(tl.int64) * outs + out
    sums = tl.zeros((ROWS, OUTS), tl.float32)
    for first in range(0, ins // 2, PAIRS):
        even, odd, packed, _ = _load_pairs(rows, values, row, there, stored, wanted, first, ins, ROWS, PAIRS)
        low = (packed & 15).to(tl.int8) - 8
        high = (packed >> 4).to(tl.int8) - 8
        part = tl.dot(even, low.to(tl.float32).to(even.dtype), input_precision="ieee")
        part = tl.dot(odd, high.to(tl.float32).to(odd.dtype), part, input_precision="ieee")
        total = tl.sum(even.to(tl.float32), 1) + tl.sum(odd.to(tl.float32), 1)
        of_group = stored
        if GROUP:
            of_group = stored * (ins // GROUP) + 2 * first // GROUP
        scale = tl.load(scales + of_group, wanted, 0.0).to(tl.float32)
        sums += part * scale[None, :]
        if ZEROS:
            zero = tl.load(zeros + of_group, wanted, 0.0).to(tl.float32)
            added = zero if ZEROS == 1 else (8 - zero) * scale
            sums += total[:, None] * added[None, :]
    _store(sums, bias, output, row, there, out, wanted, outs, HAS_BIAS)


@triton.jit(do_not_specialize=["count"])
def multiply_floats_of_4_bits(
    rows,  # [count, ins]
    ends,  # as above
    values,  # uint8 [layers * outs, ins / 2], even inputs in the low half; each is a number of e2m1
    scales,  # uint8 [layers * outs, groups]
    factors,  # float32 [layers * outs]; not read without HAS_FACTORS
    bias,  # [outs]; not read without HAS_BIAS
    output,  # [count, outs]
    count,
    outs,
    ins,
    layers,
    HAS_BIAS: tl.constexpr,
    LAYERS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    E8M0: tl.constexpr,  # whether scales are numbers of e8m0, else of e4m3
    GROUP: tl.constexpr,
    PAIRS: tl.constexpr,  # inputs that are multiplied at a time, by twos
):
    layer, first_row, end = _block_of_rows(ends, count, layers, LAYERS, ROWS)
    if first_row >= end:
        return
    row, out = first_row + tl.arange(0, ROWS), tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    there, wanted, stored = row < end, out < outs, layer.to(tl.int64) * outs + out
    sums = tl.zeros((ROWS, OUTS), tl.float32)
    for first in range(0, ins // 2, PAIRS):
        pair = first + tl.arange(0, PAIRS)
        even, odd, packed, held = _load_pairs(rows, values, row, there, stored, wanted, first, ins, ROWS, PAIRS)
        of_group = stored[None, :] * (ins // GROUP) + (2 * pair // GROUP)[:, None]
        scale = _scale(tl.load(scales + of_group, held, 0).to(tl.int32), E8M0)
        codes = packed.to(tl.int32)
        low = (_number_of_4_bits(codes & 15) * scale).to(even.dtype)
        high = (_number_of_4_bits(codes >> 4) * scale).to(even.dtype)
        sums = tl.dot(even, low, sums, input_precision="ieee")
        sums = tl.dot(odd, high, sums, input_precision="ieee")
    if HAS_FACTORS:
        sums *= tl.load(factors + stored, wanted, 0.0)[None, :]
    _store(sums, bias, output, row, there, out, wanted, outs, HAS_BIAS)


@triton.jit
def _block_of_rows(ends, count, layers, LAYERS: tl.constexpr, ROWS: tl.constexpr):
    """The layer of a program, its first row, and where the rows of this layer end; a program too many has no row."""
    block = tl.program_id(1)
    if LAYERS:
        layer = tl.arange(0, LAYERS)
        end = tl.load(ends + layer, layer < layers, 0)
        begin = tl.load(ends + layer - 1, (layer > 0) & (layer < layers), 0)
        blocks = tl.cdiv(end - begin, ROWS)
        behind = tl.cumsum(blocks, 0)  # the first block behind those of each layer
        own = (behind - blocks <= block) & (block < behind)  # one layer has it, or none
        first_row = tl.sum(tl.where(own, begin + (block - behind + blocks) * ROWS, 0), 0)
        return tl.sum(tl.where(own, layer, 0), 0), first_row, tl.sum(tl.where(own, end, 0), 0)
    return block * 0, block * ROWS, count


@triton.jit
def _load_pairs(rows, values, row, there, stored, wanted, first, ins, ROWS: tl.constexpr, PAIRS: tl.constexpr):
    """Even and odd inputs [ROWS, PAIRS], the two weights of 4 bits for each [PAIRS, OUTS], and where there are such.
    Inputs are read side by side, so that many come at once, and ahead."""
    pair, column = first + tl.arange(0, PAIRS), 2 * first + tl.arange(0, 2 * PAIRS)
    left = rows + row.to(tl.int64)[:, None] * ins + column[None, :]
    both = tl.load(left, there[:, None] & (column < ins)[None, :], 0.0)
    even, odd = tl.split(tl.reshape(both, (ROWS, PAIRS, 2)))
    held = (pair < ins // 2)[:, None] & wanted[None, :]
    packed = tl.load(values + stored[None, :] * (ins // 2) + pair[:, None], held, 0)
    return even, odd, packed, held


@triton.jit
def _store(sums, bias, output, row, there, out, wanted, outs, HAS_BIAS: tl.constexpr):
    """Writes sums [ROWS, OUTS], with the bias."""
    if HAS_BIAS:
        sums += tl.load(bias + out, wanted, 0.0).to(tl.float32)[None, :]
    place = output + row.to(tl.int64)[:, None] * outs + out[None, :]
    tl.store(place, sums.to(output.dtype.element_ty), there[:, None] & wanted[None, :])


@triton.jit
def _number_of_4_bits(code):
    """The number of an e2m1 code, float32. With a scale it is exact in bfloat16."""
    magnitude = code & 7
    larger = (2 + (magnitude & 1)) << tl.maximum((magnitude >> 1) - 1, 0)
    twice = tl.where(magnitude < 2, magnitude, larger)
    return tl.where(code < 8, twice, -twice).to(tl.float32) * 0.5


@triton.jit
def _scale(code, E8M0: tl.constexpr):
    """The number of a code of 8 bits, float32. The smallest power of two is 0 where float32 has no smaller numbers."""
    if E8M0:
        return tl.where(code == 0, 0x00400000, code << 23).to(tl.float32, bitcast=True)
    magnitude = code & 127
    normal = ((magnitude << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    number = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
    return tl.where(code < 128, number, -number)
