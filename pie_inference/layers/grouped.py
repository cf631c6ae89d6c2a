"""Linear layers of equal sizes that go together, each with rows of its own: those of the experts of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ..device.ranks import share
from ..loading.weights import Block, Split, WeightLoader
from ..ops.interface import Groupable, GroupedLinear, Linear

ALIGNMENT = 8
"""`grouped_mm` needs multiples of this many features, because it loads 16 bytes at once."""


def make_grouped(
    weights: WeightLoader, layers: Sequence[Sequence[Block]], ins: int, split: Split | None = None
) -> GroupedLinear:
    """Layers as `WeightLoader.linear` makes them, without a bias and adapters. With split "inputs", the caller adds the
    ranks' results. Raises CheckpointError."""
    sizes = [sum(block.rows for block in layers[0]), ins]
    if split is not None:
        own = 0 if split == "outputs" else 1
        sizes[own] = share(weights.ranks, sizes[own], "features of an expert")
    if not weights.quantized and has_grouped_product(weights.device, weights.dtype, sizes):
        return _Stacked(weights.stacked(layers, ins, split))
    return group([weights.linear(own, ins, split=split, add_up=False, adaptable=False) for own in layers])


def has_grouped_product(device: torch.device, dtype: torch.dtype, sizes: Sequence[int]) -> bool:
    """Whether torch has a real kernel for `grouped_mm` here, for matrices that have these sizes. Elsewhere torch loops
    over them itself, and waits for the device to do so."""
    if device.type != "cuda" or dtype != torch.bfloat16 or any(size % ALIGNMENT for size in sizes):
        return False
    return hasattr(F, "grouped_mm") and torch.cuda.get_device_capability(device)[0] in (9, 10)


def group(layers: Sequence[Linear]) -> GroupedLinear:
    """One product of all layers, if they have a kernel for it, else one after the other."""
    first = layers[0]
    grouped = first.grouped(layers) if isinstance(first, Groupable) else None
    return grouped or OneByOne(layers)


class _Stacked:
    """Layers whose weights are one tensor, by torch's product of all. Is a `GroupedLinear`."""

    capturable = True

    def __init__(self, weights: Tensor) -> None:
        """weights: [layers, out_features, in_features]."""
        self._weights = weights.transpose(1, 2)

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        return F.grouped_mm(rows, self._weights, offs=ends)


class OneByOne:
    """Layers without a kernel for all of them. Only those with rows run. Is a `GroupedLinear`."""

    capturable = False  # the host must know how many rows a layer has

    def __init__(self, layers: Sequence[Linear]) -> None:
        self._layers = layers

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        runs = zip(self._layers, pairwise([0, *ends.tolist()]), strict=True)
        return torch.cat([layer(rows[begin:end]) for layer, (begin, end) in runs if begin < end])
