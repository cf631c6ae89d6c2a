"""Operations with FlashInfer's kernels, for NVIDIA GPUs. Another implementation provides those that it lacks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..device.flashinfer_library import FlashInfer
from .interface import Activation, Linear, Ops, Rotation

ALIGNMENT = 16
"""The vectors of an activation must have a multiple of this many bytes."""


class FlashInferOps:
    """Implements `Ops`. `others` multiplies and rotates: FlashInfer can rotate only with a table of all positions."""

    def __init__(self, library: FlashInfer, others: Ops) -> None:
        self._library = library
        self._others = others

    def compile(self, device: torch.device, dtype: torch.dtype) -> None:
        """Compiles the kernels that are not compiled yet, which takes up to two minutes. Raises RuntimeError."""
        rows = torch.zeros(1, 2 * ALIGNMENT, dtype=dtype, device=device)
        self.add_rms_norm(rows, self.rms_norm(rows, rows[0], 1e-5), rows[0], 1e-5)
        self.gated(rows, "silu")
        self.gated(rows, "gelu_tanh")

    def linear(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        return self._others.linear(parts, bias)

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Like `Ops.rms_norm`. The kernels take two or three dimensions with strides, and at least one row."""
        if not rows.numel():
            return torch.empty_like(rows)
        if rows.dim() > 3:
            return self._library.rms_norm(rows.flatten(0, -2), weight, eps).view(rows.shape)
        return self._library.rms_norm(rows, weight, eps)

    def add_rms_norm(self, residual: Tensor, rows: Tensor, weight: Tensor, eps: float, *, keep: bool = False) -> Tensor:
        """Like `Ops.add_rms_norm`. The kernel writes the result to `rows`."""
        if not rows.numel():
            return rows
        if keep:
            return self._others.add_rms_norm(residual, rows, weight, eps, keep=True)
        self._library.add_rms_norm(rows, residual, weight, eps)
        return rows

    def rotate_(self, vectors: Tensor, rotation: Rotation) -> None:
        self._others.rotate_(vectors, rotation)

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        if gate_up.shape[-1] // 2 * gate_up.itemsize % ALIGNMENT:
            return self._others.gated(gate_up, activation)
        kernel = self._library.silu_and_mul if activation == "silu" else self._library.gelu_tanh_and_mul
        return kernel(gate_up)
