"""The gated feed-forward layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from ..loading.weights import Block, WeightLoader
from ..ops.interface import Activation


def separate_gate_up(prefix: str, inner_size: int) -> list[Block]:
    """Separate tensors PREFIX.gate_proj and .up_proj, as blocks of one layer."""
    return [Block(f"{prefix}.{name}_proj", inner_size) for name in ("gate", "up")]


class FeedForward(Protocol):
    """A layer that works on each row separately."""

    capturable: bool
    """Whether a graph can record it."""

    def __call__(self, rows: Tensor, /) -> Tensor:
        """[T, hidden_size] to [T, hidden_size]."""


class GatedMlp:
    """down(activation(gate(x)) * up(x)), with gate and up in one product. Implements `FeedForward`."""

    capturable = True

    def __init__(
        self,
        weights: WeightLoader,
        prefix: str,
        hidden_size: int,
        inner_size: int,
        *,
        projections: Callable[[str, int], Sequence[Block]] = separate_gate_up,
        bias: bool = False,
        activation: Activation = "silu",
    ) -> None:
        self._gate_up = weights.linear(projections(prefix, inner_size), hidden_size, bias=bias, split="outputs")
        down = [Block(f"{prefix}.down_proj", hidden_size)]
        self._down = weights.linear(down, inner_size, bias=bias, split="inputs")
        self._ops = weights.ops
        self._activation: Activation = activation

    def __call__(self, rows: Tensor) -> Tensor:
        return self._down(self._ops.gated(self._gate_up(rows), self._activation))
