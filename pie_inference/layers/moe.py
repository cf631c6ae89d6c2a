"""Mixture of experts (Shazeer et al. 2017): a router chooses for each token a few of many feed-forward layers.

Rows are sorted by expert, so that each chosen expert runs once over its rows and other experts do not run. The result
of a token is the weighted sum over its own choices in their order; it does not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..device.tensors import widened
from ..errors import CheckpointError
from ..loading.weights import Block, WeightLoader
from ..ops.interface import Activation
from .grouped import make_grouped


@dataclass(frozen=True)
class MoeShape:
    """Sizes of a mixture of experts, over all ranks."""

    hidden_size: int
    inner_size: int  # of one expert
    num_experts: int
    experts_per_token: int
    renormalize: bool  # whether the weights of the chosen experts are made to add up to 1

    def __post_init__(self) -> None:
        if self.experts_per_token > self.num_experts:
            raise CheckpointError(
                f"config.json: num_experts_per_tok {self.experts_per_token} exceeds the {self.num_experts} experts"
            )


@dataclass(frozen=True)
class ExpertNames:
    """Names of the tensors of expert N: PREFIX.experts.N.GATE.weight and so on."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


STACKED = "gate_up_proj"
"""Some checkpoints have the experts of a layer in two tensors, PREFIX.experts.gate_up_proj and .down_proj."""


class MixtureOfExperts:
    """The sum of each row's chosen experts, weighted by the router's softmax. Implements `FeedForward`."""

    def __init__(
        self,
        weights: WeightLoader,
        prefix: str,
        shape: MoeShape,
        activation: Activation,
        names: ExpertNames | None = None,
    ) -> None:
        router = [Block(f"{prefix}.gate", shape.num_experts)]
        self._router = weights.linear(router, shape.hidden_size, role="router", adaptable=False)
        every, own, names = range(shape.num_experts), f"{prefix}.experts", names or ExpertNames()
        first = [gate_up(weights, own, expert, shape, names) for expert in every]
        second = [down(weights, own, expert, shape, names) for expert in every]
        self._gate_up = make_grouped(weights, first, shape.hidden_size, "outputs")
        self._down = make_grouped(weights, second, shape.inner_size, "inputs")
        self._every = torch.arange(shape.num_experts, device=weights.device)
        self._ops, self._activation = weights.ops, activation
        self._ranks, self._shape = weights.ranks, shape
        self.capturable = self._gate_up.capturable and self._down.capturable

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, hidden_size] to [T, hidden_size]."""
        chosen, shares = self._route(rows)
        experts, order = chosen.view(-1).sort(stable=True)
        ends = torch.searchsorted(experts, self._every, right=True, out_int32=True)
        inner = self._gate_up(rows.index_select(0, order // chosen.shape[1]), ends)
        sorted_results = self._down(self._ops.gated(inner, self._activation), ends)
        results = torch.empty_like(sorted_results).index_copy_(0, order, sorted_results)
        mixed = (results.view(*chosen.shape, -1) * shares.unsqueeze(-1)).sum(1).to(rows.dtype)
        return self._ranks.all_reduce(mixed)

    def _route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each row, int64, and their weights, at least float32, both [T, experts_per_token]."""
        probabilities = widened(self._router(rows)).softmax(-1)
        shares, chosen = probabilities.topk(self._shape.experts_per_token, -1)
        return chosen, shares / shares.sum(-1, keepdim=True) if self._shape.renormalize else shares


def gate_up(weights: WeightLoader, prefix: str, expert: int, shape: MoeShape, names: ExpertNames) -> Sequence[Block]:
    """The first layer of an expert."""
    if f"{prefix}.{STACKED}" in weights:
        first, total, inner = 2 * expert * shape.inner_size, 2 * shape.num_experts * shape.inner_size, shape.inner_size
        name, count = f"{prefix}.{STACKED}", shape.num_experts
        return [Block(name, inner, at, total, count) for at in (first, first + inner)]
    return [Block(f"{prefix}.{expert}.{name}", shape.inner_size) for name in (names.gate, names.up)]


def down(weights: WeightLoader, prefix: str, expert: int, shape: MoeShape, names: ExpertNames) -> Sequence[Block]:
    """The second layer of an expert."""
    if f"{prefix}.{STACKED}" in weights:
        size, count = shape.hidden_size, shape.num_experts
        return [Block(f"{prefix}.down_proj", size, expert * size, count * size, count)]
    return [Block(f"{prefix}.{expert}.{names.down}", shape.hidden_size)]
