"""Plain torch operations, for any device. They are the reference for kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .interface import Activation, Linear, Rotation

PACKING_HINT = 16
"""Number of rows that oneDNN plans for; 1, 16 and 64 were equally fast when measured."""


class TorchOps:
    """Implements `Ops`."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype

    def linear(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        """On a CPU the weight is packed once for oneDNN: 1.5 to 4 times as fast as `F.linear` for few rows."""
        converted = [part.to(self._device, self._dtype) for part in parts]
        weight = converted[0] if len(converted) == 1 else torch.cat(converted)
        if not _can_pack(weight):
            return lambda rows: F.linear(rows, weight, bias)
        packed = torch.ops.mkldnn._reorder_linear_weight.default(weight.contiguous(), PACKING_HINT)
        multiply = torch.ops.mkldnn._linear_pointwise.default
        no_scalars: list[float] = []
        return lambda rows: multiply(rows, packed, bias, "none", no_scalars, "")

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(rows, weight.shape, weight, eps)

    def add_rms_norm(self, residual: Tensor, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.rms_norm(residual.add_(rows), weight, eps)

    def rotate_(self, vectors: Tensor, rotation: Rotation) -> None:
        swapped = vectors.roll(vectors.shape[-1] // 2, -1)
        vectors.mul_(rotation.cos).addcmul_(swapped, rotation.sin)

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        active = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
        return active.mul_(up)


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
