"""Mixture of experts (Shazeer et al. 2017): a router chooses for each token a few of many feed-forward layers.

Rows are sorted by expert, so that each chosen expert runs once over its rows and other experts do not run. The result
of a token is the weighted sum over its own choices in their order; it does not depend on the rest of the batch.
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
from ..device.tensors import widened
from ..errors import CheckpointError
from ..loading.weights import Block, WeightLoader
from ..ops.interface import Activation

GROUPED_ALIGNMENT = 8
"""`grouped_mm` needs multiples of this many features, because it loads 16 bytes at once."""


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


class Experts(Protocol):
    """All experts of a layer."""

    capturable: bool
    """Whether a CUDA graph can record them."""

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Runs each expert on its rows. rows: [R, hidden_size], sorted by expert; ends: int32 [num_experts], the end of
        each expert's rows. With several ranks it returns this rank's part of the sum."""


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
        self._router = weights.linear(router, shape.hidden_size, role="router")
        kind = GroupedExperts if can_group(weights, shape) else LoopedExperts
        self._experts: Experts = kind(weights, f"{prefix}.experts", shape, activation, names or ExpertNames())
        self._every = torch.arange(shape.num_experts, device=weights.device)
        self._ranks, self._shape = weights.ranks, shape
        self.capturable = self._experts.capturable

    def __call__(self, rows: Tensor) -> Tensor:
        """[T, hidden_size] to [T, hidden_size]."""
        chosen, shares = self._route(rows)
        experts, order = chosen.view(-1).sort(stable=True)
        ends = torch.searchsorted(experts, self._every, right=True, out_int32=True)
        sorted_results = self._experts(rows.index_select(0, order // chosen.shape[1]), ends)
        results = torch.empty_like(sorted_results).index_copy_(0, order, sorted_results)
        mixed = (results.view(*chosen.shape, -1) * shares.unsqueeze(-1)).sum(1).to(rows.dtype)
        return self._ranks.all_reduce(mixed)

    def _route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each row, int64, and their weights, at least float32, both [T, experts_per_token]."""
        probabilities = widened(self._router(rows)).softmax(-1)
        shares, chosen = probabilities.topk(self._shape.experts_per_token, -1)
        return chosen, shares / shares.sum(-1, keepdim=True) if self._shape.renormalize else shares


class LoopedExperts:
    """Runs one expert after the other, each as separate linear layers: on CPUs, and if weights are quantized.
    Implements `Experts`."""

    capturable = False  # the host must know how many rows an expert has

    def __init__(
        self, weights: WeightLoader, prefix: str, shape: MoeShape, activation: Activation, names: ExpertNames
    ) -> None:
        self._ops, self._activation = weights.ops, activation
        every = range(shape.num_experts)
        self._gate_up = [
            weights.linear(
                gate_up(weights, prefix, expert, shape, names), shape.hidden_size, split="outputs", adaptable=False
            )
            for expert in every
        ]
        self._down = [
            weights.linear(
                down(weights, prefix, expert, shape, names),
                shape.inner_size,
                split="inputs",
                add_up=False,
                adaptable=False,
            )
            for expert in every
        ]

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        runs = enumerate(pairwise([0, *ends.tolist()]))
        return torch.cat([self._run(expert, rows[begin:end]) for expert, (begin, end) in runs if begin < end])

    def _run(self, expert: int, rows: Tensor) -> Tensor:
        return self._down[expert](self._ops.gated(self._gate_up[expert](rows), self._activation))


class GroupedExperts:
    """Runs all experts in one product, which reads the number of rows of each expert on the device. Implements
    `Experts`."""

    capturable = True

    def __init__(
        self, weights: WeightLoader, prefix: str, shape: MoeShape, activation: Activation, names: ExpertNames
    ) -> None:
        self._ops, self._activation = weights.ops, activation
        every = range(shape.num_experts)
        first = [gate_up(weights, prefix, expert, shape, names) for expert in every]
        second = [down(weights, prefix, expert, shape, names) for expert in every]
        self._gate_up = weights.stacked(first, shape.hidden_size, split="outputs").transpose(1, 2)
        self._down = weights.stacked(second, shape.inner_size, split="inputs").transpose(1, 2)

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        inner = self._ops.gated(F.grouped_mm(rows, self._gate_up, offs=ends), self._activation)
        return F.grouped_mm(inner, self._down, offs=ends)


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


def can_group(weights: WeightLoader, shape: MoeShape) -> bool:
    """Whether the experts of a family of ours run in one product."""
    inner = share(weights.ranks, shape.inner_size, "inner features of an expert")
    return has_grouped_product(weights, shape.hidden_size, inner)


def has_grouped_product(weights: WeightLoader, *sizes: int) -> bool:
    """Whether torch has a real kernel for `grouped_mm` here, for experts whose matrices have these sizes. Elsewhere
    torch loops over the experts itself, and waits for the device to do so."""
    if weights.quantized or weights.device.type != "cuda" or weights.dtype != torch.bfloat16:
        return False
    aligned = not any(size % GROUPED_ALIGNMENT for size in sizes)
    return aligned and hasattr(F, "grouped_mm") and torch.cuda.get_device_capability(weights.device)[0] in (9, 10)
