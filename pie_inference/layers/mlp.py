"""The gated feed-forward layer of the Llama family."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ..weights import WeightLoader
from .linear import load_linear


class GatedMlp:
    """down(silu(gate(x)) * up(x)), gate and up computed in one product."""

    def __init__(self, weights: WeightLoader, prefix: str, hidden_size: int, inner_size: int, bias: bool) -> None:
        inner = (inner_size, inner_size)
        self._gate_up = load_linear(weights, [f"{prefix}.gate_proj", f"{prefix}.up_proj"], inner, hidden_size, bias)
        self._down = load_linear(weights, [f"{prefix}.down_proj"], [hidden_size], inner_size, bias)

    def __call__(self, rows: Tensor) -> Tensor:
        gate, up = self._gate_up(rows).chunk(2, -1)
        return self._down(F.silu(gate).mul_(up))
