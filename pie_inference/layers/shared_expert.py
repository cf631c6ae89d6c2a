"""An expert that runs for every row, beside a mixture of experts."""

from __future__ import annotations

from torch import Tensor

from ..loading.weights import Block, WeightLoader
from .mlp import FeedForward, GatedMlp


class WithSharedExpert:
    """The sum of a mixture and of one more expert, which has a gate for each row. Implements `FeedForward`."""

    def __init__(
        self, weights: WeightLoader, prefix: str, hidden_size: int, inner_size: int, mixture: FeedForward
    ) -> None:
        self._mixture, self.capturable = mixture, mixture.capturable
        self._shared = GatedMlp(weights, f"{prefix}.shared_expert", hidden_size, inner_size)
        self._gate = weights.linear([Block(f"{prefix}.shared_expert_gate", 1)], hidden_size, role="router")

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, hidden_size] to [T, hidden_size]."""
        share = self._gate(rows).sigmoid()
        return self._mixture(rows).addcmul_(share, self._shared(rows))
