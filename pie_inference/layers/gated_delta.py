"""Gated DeltaNet (Yang et al. 2024): a layer with a state of fixed size in the place of attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention.interface import AttentionPlan
from ..device.ranks import Ranks, share
from ..loading.weights import Block, Split, WeightLoader
from ..ops.interface import Rotation
from .norm import load_norm_weight


@dataclass(frozen=True)
class DeltaShape:
    """Sizes of a Gated DeltaNet layer, over all ranks or of one."""

    hidden_size: int
    key_heads: int
    heads: int  # of values
    key_dim: int
    value_dim: int
    width: int  # of the convolution

    @property
    def widths(self) -> list[int]:
        """Numbers of all queries, keys and values."""
        keys = self.key_heads * self.key_dim
        return [keys, keys, self.heads * self.value_dim]

    @property
    def inputs(self) -> int:
        """Numbers of the inputs that the convolution keeps of a text."""
        return (self.width - 1) * sum(self.widths)

    @property
    def numbers(self) -> int:
        """Numbers of a state: inputs of the convolution, then what the rule keeps."""
        return self.inputs + self.heads * self.key_dim * self.value_dim

    def shared_by(self, ranks: Ranks) -> DeltaShape:
        """The sizes on one rank, which has some of the heads. Raises CheckpointError if heads do not divide."""
        key_heads = share(ranks, self.key_heads, "key heads of linear attention")
        heads = share(ranks, self.heads, "value heads of linear attention")
        return DeltaShape(self.hidden_size, key_heads, heads, self.key_dim, self.value_dim, self.width)


@dataclass(frozen=True)
class DeltaBlocks:
    """The parts of the first products: queries, keys, values and output gates; betas and decays of heads."""

    mixed: Sequence[Block]
    gates: Sequence[Block]
    split: Split | None  # None: they are those of one rank


def separate_blocks(prefix: str, shape: DeltaShape, ranks: Ranks) -> DeltaBlocks:
    """Tensors in_proj_qkv, in_proj_z, in_proj_b and in_proj_a, as in Qwen3.5."""
    mixed, first = [], 0
    for rows in shape.widths:
        mixed.append(Block(f"{prefix}.in_proj_qkv", rows, first, sum(shape.widths)))
        first += rows
    gates = [Block(f"{prefix}.in_proj_{name}", shape.heads) for name in "ba"]
    return DeltaBlocks([*mixed, Block(f"{prefix}.in_proj_z", shape.widths[2])], gates, "outputs")


def blocks_by_head(prefix: str, shape: DeltaShape, ranks: Ranks) -> DeltaBlocks:
    """Tensors in_proj_qkvz and in_proj_ba, in which all rows of a key head stand together, as in Qwen3-Next."""
    share = shape.heads // shape.key_heads
    count = shape.shared_by(ranks).key_heads
    own = range(ranks.rank * count, (ranks.rank + 1) * count)

    def blocks(name: str, sizes: Sequence[int]) -> list[Block]:
        total = sum(sizes)
        return [
            Block(f"{prefix}.{name}", size, head * total + sum(sizes[:part]), shape.key_heads * total)
            for part, size in enumerate(sizes)
            for head in own
        ]

    values = share * shape.value_dim
    return DeltaBlocks(
        blocks("in_proj_qkvz", (shape.key_dim, shape.key_dim, values, values)),
        blocks("in_proj_ba", (share, share)),
        None,
    )


class GatedDelta:
    """Queries, keys and values by one product and a convolution; the gated delta rule; a norm with a gate."""

    def __init__(
        self,
        weights: WeightLoader,
        number: int,
        prefix: str,
        shape: DeltaShape,
        eps: float,
        projections: Callable[[str, DeltaShape, Ranks], DeltaBlocks] = separate_blocks,
    ) -> None:
        """`number` counts the layers that have a state."""
        blocks = projections(prefix, shape, weights.ranks)
        self._mixed_and_gate = weights.linear(blocks.mixed, shape.hidden_size, split=blocks.split)
        self._gates = weights.linear(blocks.gates, shape.hidden_size, split=blocks.split, role="router")
        out = [Block(f"{prefix}.out_proj", shape.hidden_size)]
        self._out = weights.linear(out, shape.widths[2], split="inputs")
        self._taps = _taps(weights, f"{prefix}.conv1d", shape)
        self._speed = -_per_head(weights, f"{prefix}.A_log", shape.heads).exp()
        self._bias = _per_head(weights, f"{prefix}.dt_bias", shape.heads)
        self._norm = load_norm_weight(weights, f"{prefix}.norm", shape.value_dim)
        self._shape, self._number, self._eps = shape.shared_by(weights.ranks), number, eps
        self._ops, self._states = weights.ops, weights.states

    def __call__(self, rows: Tensor, rotation: Rotation, attention: AttentionPlan) -> Tensor:
        """[T, hidden_size] to [T, hidden_size]. It needs no positions and no keys of the cache."""
        shape, runs = self._shape, self._states.runs
        inputs, state = self._states.layer(self._number).tensor_split((shape.inputs,), 1)
        mixed, gate = self._mixed_and_gate(rows).tensor_split((sum(shape.widths),), 1)
        mixed = self._states.recurrences.convolve(
            mixed, self._taps, torch.unflatten(inputs, 1, (shape.width - 1, -1)), runs
        )
        query, key, value = torch.split(mixed, shape.widths, 1)
        beta, pace = self._gates(rows).to(self._states.dtype).chunk(2, 1)
        result = self._states.recurrences.gated_delta(
            torch.unflatten(query, 1, (-1, shape.key_dim)),
            torch.unflatten(key, 1, (-1, shape.key_dim)),
            torch.unflatten(value, 1, (-1, shape.value_dim)),
            self._speed * F.softplus(pace + self._bias),
            beta.sigmoid().contiguous(),
            torch.unflatten(state, 1, (-1, shape.key_dim, shape.value_dim)),
            runs,
        )
        normal = self._ops.rms_norm(result, self._norm, self._eps).flatten(1)
        return self._out(normal.mul_(F.silu(gate)))


def _taps(weights: WeightLoader, name: str, shape: DeltaShape) -> Tensor:
    """The convolution's weight of this rank, [width, channels]."""
    whole = weights.tensor(f"{name}.weight", sum(shape.widths), 1, shape.width, dtype=weights.states.dtype)
    parts = [_own(weights.ranks, part) for part in torch.split(whole.squeeze(1), shape.widths)]
    return torch.cat(parts).T.contiguous()


def _per_head(weights: WeightLoader, name: str, heads: int) -> Tensor:
    return _own(weights.ranks, weights.tensor(name, heads, dtype=weights.states.dtype))


def _own(ranks: Ranks, rows: Tensor) -> Tensor:
    """This rank's share of rows that belong to heads."""
    count = len(rows) // ranks.size
    return rows.narrow(0, ranks.rank * count, count)
