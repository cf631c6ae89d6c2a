"""Operations of Transformer layers with the kernels of `cpu_kernels`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..cpu_kernels.library import ADDRESS, FLOAT, INTEGER, SUFFIX, Library
from .cpu_linear import LinearPacker
from .interface import Activation, Linear, MakeLinear, Rotation

ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}
"""The numbers of the activations in rows.cpp."""


class CpuOps:
    """Implements `Ops` in float32 and bfloat16."""

    def __init__(self, library: Library, dtype: torch.dtype, make_linear: MakeLinear | None = None) -> None:
        """`make_linear` makes the linear layers; None: they have the kernels' products."""
        suffix = SUFFIX[dtype]
        a, n = ADDRESS, INTEGER
        self._library = library
        self._packers: dict[torch.dtype, LinearPacker] = {}
        self._make_linear = make_linear or self._packer(dtype).make
        self._rms_norm = library.kernel(f"rms_norm_{suffix}", a, n, n, a, a, n, n, n, FLOAT, n)
        self._add_rms_norm = library.kernel(f"add_rms_norm_{suffix}", a, a, a, a, n, n, FLOAT, n)
        self._rotate = library.kernel(f"rotate_{suffix}", a, n, n, a, a, n, n, n, n)
        self._gated = library.kernel(f"gated_{suffix}", a, n, a, n, n, n, n)

    def linear(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        return self._make_linear(parts, bias)

    def linear_in(self, dtype: torch.dtype, weight: Tensor, bias: Tensor | None) -> Linear:
        """A layer for rows in `dtype`, by the kernels' products, whatever makes the others."""
        return self._packer(dtype).make([weight], bias)

    def _packer(self, dtype: torch.dtype) -> LinearPacker:
        if dtype not in self._packers:
            self._packers[dtype] = LinearPacker(self._library, dtype)
        return self._packers[dtype]

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        output = torch.empty_like(rows, memory_format=torch.contiguous_format)
        if rows.dim() > 3 or rows.stride(-1) != 1:
            rows = rows.contiguous().view(-1, rows.shape[-1])
        outer, outer_stride, inner, inner_stride = _two_dimensions(rows)
        self._rms_norm(
            rows.data_ptr(),
            outer_stride,
            inner_stride,
            weight.data_ptr(),
            output.data_ptr(),
            outer,
            inner,
            rows.shape[-1],
            eps,
            torch.get_num_threads(),
        )
        return output

    def add_rms_norm(self, residual: Tensor, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = rows.contiguous()
        output = torch.empty_like(rows)
        self._add_rms_norm(
            _contiguous_address(residual),
            rows.data_ptr(),
            weight.data_ptr(),
            output.data_ptr(),
            *rows.shape,
            eps,
            torch.get_num_threads(),
        )
        return output

    def rotate_(self, vectors: Tensor, rotation: Rotation) -> None:
        assert vectors.stride(-1) == 1
        count, heads, dim = vectors.shape
        self._rotate(
            vectors.data_ptr(),
            vectors.stride(0),
            vectors.stride(1),
            _contiguous_address(rotation.cos),
            _contiguous_address(rotation.sin),
            count,
            heads,
            dim // 2,
            torch.get_num_threads(),
        )

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        assert gate_up.stride(-1) == 1
        count, size = gate_up.shape[0], gate_up.shape[1] // 2
        output = gate_up.new_empty(count, size)
        self._gated(
            gate_up.data_ptr(),
            gate_up.stride(0),
            output.data_ptr(),
            count,
            size,
            ACTIVATIONS[activation],
            torch.get_num_threads(),
        )
        return output


def _two_dimensions(rows: Tensor) -> tuple[int, int, int, int]:
    """Sizes and strides of all dimensions except the last, as two dimensions: an outer one and an inner one."""
    if rows.dim() == 3:
        return rows.shape[0], rows.stride(0), rows.shape[1], rows.stride(1)
    return rows.shape[0], rows.stride(0), 1, 0


def _contiguous_address(tensor: Tensor) -> int:
    """The address of a contiguous tensor. Only our own callers could pass another one."""
    assert tensor.is_contiguous()
    return tensor.data_ptr()
