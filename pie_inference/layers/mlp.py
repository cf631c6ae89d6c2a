"""The gated feed-forward layer."""

from __future__ import annotations

from torch import Tensor

from ..ops.interface import Activation
from ..weights import Block, WeightLoader


class GatedMlp:
    """down(activation(gate(x)) * up(x)), gate and up computed in one product."""

    def __init__(
        self,
        weights: WeightLoader,
        prefix: str,
        hidden_size: int,
        inner_size: int,
        *,
        bias: bool = False,
        activation: Activation = "silu",
    ) -> None:
        blocks = [Block(f"{prefix}.{name}_proj", inner_size) for name in ("gate", "up")]
        self._gate_up = weights.linear(blocks, hidden_size, bias=bias, split="outputs")
        down = [Block(f"{prefix}.down_proj", hidden_size)]
        self._down = weights.linear(down, inner_size, bias=bias, split="inputs")
        self._ops = weights.ops
        self._activation: Activation = activation

    def __call__(self, rows: Tensor) -> Tensor:
        return self._down(self._ops.gated(self._gate_up(rows), self._activation))
