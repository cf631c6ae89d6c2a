"""Mixture of experts (Shazeer et al. 2017): a router chooses for each token a few of many feed-forward layers.

Rows are sorted by expert, so that each chosen expert runs once over its rows and others are not touched. What a token
gets is the weighted sum over its own choices in their order, whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..device.ranks import share
from ..errors import CheckpointError
from ..loading.weights import Block, WeightLoader
from ..ops.interface import Activation

GROUPED_ALIGNMENT = 8
"""Features must be a multiple of it for `grouped_mm`, which loads 16 bytes at once."""


@dataclass(frozen=True)
class MoeShape:
    """Sizes of a mixture, all ranks together."""

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
    """What the tensors of expert N are called: PREFIX.experts.N.GATE.weight and so on."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


class Experts(Protocol):
    """All experts of a layer."""

    capturable: bool
    """Whether a CUDA graph can record them."""

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Rows [R, hidden_size], sorted by expert; int32 [num_experts], where those of each expert end. On several
        ranks, this rank's part of the sum."""


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
        self._router = weights.linear(router, shape.hidden_size, exact=True)
        kind = GroupedExperts if can_group(weights, shape) else LoopedExperts
        self._experts: Experts = kind(weights, f"{prefix}.experts", shape, activation, names or ExpertNames())
        self._every = torch.arange(shape.num_experts, device=weights.device)
        self._ranks, self._shape = weights.ranks, shape
        self.capturable = self._experts.capturable

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, hidden_size] to as many rows of the same width."""
        chosen, shares = self._route(rows)
        experts, order = chosen.view(-1).sort(stable=True)
        ends = torch.searchsorted(experts, self._every, right=True, out_int32=True)
        sorted_results = self._experts(rows.index_select(0, order // chosen.shape[1]), ends)
        results = torch.empty_like(sorted_results).index_copy_(0, order, sorted_results)
        mixed = (results.view(*chosen.shape, -1) * shares.unsqueeze(-1)).sum(1).to(rows.dtype)
        return self._ranks.all_reduce(mixed)

    def _route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Experts int64 and their weights float32, both [T, experts_per_token]."""
        probabilities = self._router(rows).float().softmax(-1)
        shares, chosen = probabilities.topk(self._shape.experts_per_token, -1)
        return chosen, shares / shares.sum(-1, keepdim=True) if self._shape.renormalize else shares


class LoopedExperts:
    """One expert after the other, as linear layers of their own: on CPUs, and where weights are quantized.
    Implements `Experts`."""

    capturable = False  # how many rows an expert has must be known on the host

    def __init__(
        self, weights: WeightLoader, prefix: str, shape: MoeShape, activation: Activation, names: ExpertNames
    ) -> None:
        self._ops, self._activation = weights.ops, activation
        every = range(shape.num_experts)
        self._gate_up = [
            weights.linear(gate_up(prefix, expert, shape, names), shape.hidden_size, split="outputs")
            for expert in every
        ]
        self._down = [
            weights.linear(down(prefix, expert, shape, names), shape.inner_size, split="inputs", add_up=False)
            for expert in every
        ]

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        runs = enumerate(pairwise([0, *ends.tolist()]))
        return torch.cat([self._run(expert, rows[begin:end]) for expert, (begin, end) in runs if begin < end])

    def _run(self, expert: int, rows: Tensor) -> Tensor:
        return self._down[expert](self._ops.gated(self._gate_up[expert](rows), self._activation))


class GroupedExperts:
    """All experts in one product, which reads on the device how many rows each has. Implements `Experts`."""

    capturable = True

    def __init__(
        self, weights: WeightLoader, prefix: str, shape: MoeShape, activation: Activation, names: ExpertNames
    ) -> None:
        self._ops, self._activation = weights.ops, activation
        every = range(shape.num_experts)
        first = [gate_up(prefix, expert, shape, names) for expert in every]
        second = [down(prefix, expert, shape, names) for expert in every]
        self._gate_up = weights.stacked(first, shape.hidden_size, split="outputs").transpose(1, 2)
        self._down = weights.stacked(second, shape.inner_size, split="inputs").transpose(1, 2)

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        inner = self._ops.gated(F.grouped_mm(rows, self._gate_up, offs=ends), self._activation)
        return F.grouped_mm(inner, self._down, offs=ends)


def gate_up(prefix: str, expert: int, shape: MoeShape, names: ExpertNames) -> Sequence[Block]:
    """The first layer of an expert."""
    return [Block(f"{prefix}.{expert}.{name}", shape.inner_size) for name in (names.gate, names.up)]


def down(prefix: str, expert: int, shape: MoeShape, names: ExpertNames) -> Sequence[Block]:
    """Its second layer."""
    return [Block(f"{prefix}.{expert}.{names.down}", shape.hidden_size)]


def can_group(weights: WeightLoader, shape: MoeShape) -> bool:
    """Whether torch has a kernel for `grouped_mm` here; elsewhere it loops over experts too, and waits to do so."""
    if weights.quantized or weights.device.type != "cuda" or weights.dtype != torch.bfloat16:
        return False
    sizes = (shape.hidden_size, share(weights.ranks, shape.inner_size, "inner features of an expert"))
    aligned = not any(size % GROUPED_ALIGNMENT for size in sizes)
    return aligned and hasattr(F, "grouped_mm") and torch.cuda.get_device_capability(weights.device)[0] in (9, 10)
