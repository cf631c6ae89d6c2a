"""Triton kernels for `triton_ops`. All compute in float32 and round once."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _normalize(row, weight, eps, size):
    """A row divided by its root mean square, times a weight. Only the first `size` numbers of the row are valid."""
    return row * tl.rsqrt(tl.sum(row * row, 0) / size + eps) * weight


@triton.jit
def sigmoid(x):
    """The sigmoid, from the exponential of a bounded number, since exp of a large number is infinite."""
    return 1.0 / (1.0 + tl.exp(-tl.maximum(x, -80.0)))


@triton.jit(do_not_specialize=["inner"])
def rms_norm(result, rows, weight, eps, inner, outer_stride, inner_stride, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Normalizes rows [outer, inner, SIZE] with strides into contiguous ones. Grid (outer * inner,)."""
    number = tl.program_id(0)
    at = (number // inner).to(tl.int64) * outer_stride + (number % inner) * inner_stride
    column = tl.arange(0, PADDED)
    inside = column < SIZE
    row = tl.load(rows + at + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    normal = _normalize(row, scale, eps, SIZE)
    tl.store(result + number.to(tl.int64) * SIZE + column, normal.to(result.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm(
    result, residual, rows, weight, eps, residual_stride, rows_stride, SIZE: tl.constexpr, PADDED: tl.constexpr
):
    """Adds rows to `residual` in place, and normalizes the stored sum. Grid (T,)."""
    number = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    inside = column < SIZE
    here = residual + number * residual_stride + column
    added = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    added += tl.load(rows + number * rows_stride + column, mask=inside, other=0.0).to(tl.float32)
    stored = added.to(residual.dtype.element_ty)
    tl.store(here, stored, mask=inside)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    normal = _normalize(stored.to(tl.float32), scale, eps, SIZE)
    tl.store(result + number * SIZE + column, normal.to(result.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["heads"])
def rotate(
    vectors, cos, sin, heads, row_stride, head_stride, HALF: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr
):
    """Rotates pairs (i, HALF + i) of heads [T, heads, 2 * HALF]. Grid (T, blocks of BLOCK heads)."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, PADDED)
    in_half = column < HALF
    inside = (head < heads)[:, None] & in_half[None, :]
    low = vectors + row * row_stride + head[:, None] * head_stride + column[None, :]
    first = tl.load(low, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(low + HALF, mask=inside, other=0.0).to(tl.float32)
    angle = row * (2 * HALF) + column
    cos_first = tl.load(cos + angle, mask=in_half, other=0.0).to(tl.float32)[None, :]
    cos_second = tl.load(cos + angle + HALF, mask=in_half, other=0.0).to(tl.float32)[None, :]
    sin_first = tl.load(sin + angle, mask=in_half, other=0.0).to(tl.float32)[None, :]
    sin_second = tl.load(sin + angle + HALF, mask=in_half, other=0.0).to(tl.float32)[None, :]
    kind = vectors.dtype.element_ty
    tl.store(low, (first * cos_first + second * sin_first).to(kind), mask=inside)
    tl.store(low + HALF, (second * cos_second + first * sin_second).to(kind), mask=inside)


@triton.jit
def gated(result, gate_up, rows_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr):
    """activation(gate) * up of [T, 2 * SIZE]. Grid (T, blocks)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    gate = tl.load(gate_up + row * rows_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * rows_stride + SIZE + column, mask=inside, other=0.0).to(tl.float32)
    if GELU:  # (1 + tanh(x)) / 2 is sigmoid(2 x)
        active = gate * sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        active = gate * sigmoid(gate)
    tl.store(result + row * SIZE + column, (active * up).to(result.dtype.element_ty), mask=inside)
