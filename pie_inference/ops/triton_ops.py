"""Operations with Triton kernels: one launch each, while torch needs several."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import triton_kernels as kernels
from .interface import Activation, Linear, Ops, Rotation

GATED_BLOCK = 1024
HEADS_BLOCK = 16


class TritonOps:
    """Implements `Ops`. Another implementation provides matrix products."""

    def __init__(self, products: Ops) -> None:
        self._products = products

    def linear(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        return self._products.linear(parts, bias)

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        result = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
        flat = rows if rows.dim() <= 3 else rows.flatten(0, -3)
        outer, inner = flat.shape[0], flat.shape[1] if flat.dim() == 3 else 1
        if rows.numel():
            size = rows.shape[-1]
            kernels.rms_norm[(outer * inner,)](
                result, flat, weight, eps, inner, flat.stride(0), flat.stride(-2), SIZE=size, **_padded(size)
            )
        return result

    def add_rms_norm(self, residual: Tensor, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        result = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
        if rows.numel():
            size = rows.shape[-1]
            kernels.add_rms_norm[(len(rows),)](
                result, residual, rows, weight, eps, residual.stride(0), rows.stride(0), SIZE=size, **_padded(size)
            )
        return result

    def rotate_(self, vectors: Tensor, rotation: Rotation) -> None:
        rows, heads, dim = vectors.shape
        if vectors.numel():
            kernels.rotate[(rows, -(-heads // HEADS_BLOCK))](
                vectors,
                rotation.cos,
                rotation.sin,
                heads,
                vectors.stride(0),
                vectors.stride(1),
                HALF=dim // 2,
                PADDED=_power_of_2(dim // 2),
                BLOCK=HEADS_BLOCK,
            )

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        rows, size = len(gate_up), gate_up.shape[-1] // 2
        result = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
        if result.numel():
            kernels.gated[(rows, -(-size // GATED_BLOCK))](
                result, gate_up, gate_up.stride(0), SIZE=size, BLOCK=GATED_BLOCK, GELU=activation == "gelu_tanh"
            )
        return result


def _power_of_2(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _padded(size: int) -> dict[str, int]:
    """Launch options for a row in one block, with as many threads as it can use."""
    block = _power_of_2(size)
    return {"PADDED": block, "num_warps": max(1, min(16, block // 512))}
