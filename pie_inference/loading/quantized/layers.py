"""Makes layers of weights that are quantized in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ...cpu_kernels.library import Library
from ...ops.interface import Linear
from ...quantization.choose import make_linear
from ...quantization.formats import stack
from .scheme import Scheme, StoredWeight, Tensors


@dataclass(frozen=True)
class QuantizedTensors:
    """The weights of a checkpoint that are quantized in it."""

    scheme: Scheme
    tensors: Tensors
    library: Library | None  # the compiled kernels for CPUs, if they serve quantized layers
    names: Mapping[str, str] | None = None  # of such modules, to their names in the checkpoint; None: these are equal

    def holds(self, module: str) -> bool:
        """Whether the module has such a weight."""
        return self.scheme.holds(self.tensors, module) if self.names is None else module in self.names

    def read(self, module: str, rows: int, columns: int) -> StoredWeight:
        """The weight [rows, columns] of a module. Raises CheckpointError."""
        stored = module if self.names is None else self.names[module]
        return self.scheme.read(self.tensors, stored, rows, columns)


def stored_linear(
    parts: Sequence[StoredWeight], bias: Tensor | None, device: torch.device, library: Library | None
) -> Linear:
    """One layer with the outputs of all parts side by side. Parts of one form and order are one product."""
    runs: list[list[StoredWeight]] = []
    for part in parts:
        if runs and _alike(runs[-1][0], part):
            runs[-1].append(part)
        else:
            runs.append([part])
    ends = accumulate((sum(part.weight.rows for part in run) for run in runs), initial=0)
    layers = []
    for run, (first, last) in zip(runs, pairwise(ends), strict=True):
        own_bias = None if bias is None else bias[first:last].contiguous()
        product = make_linear(stack([part.weight for part in run]).to(device), own_bias, library)
        order = run[0].order
        layers.append(product if order is None else Reordered(product, order.to(device)))
    return layers[0] if len(layers) == 1 else side_by_side(layers, None)


def side_by_side(layers: Sequence[Linear], bias: Tensor | None) -> Linear:
    """One layer with the outputs of all, which are products of their own."""

    def linear(rows: Tensor) -> Tensor:
        product = torch.cat([layer(rows) for layer in layers], -1)
        return product if bias is None else product.add_(bias)

    return linear


def _alike(one: StoredWeight, other: StoredWeight) -> bool:
    same_order = one.order is other.order or (
        one.order is not None and other.order is not None and torch.equal(one.order, other.order)
    )
    return same_order and one.weight.is_like(other.weight)


@dataclass(frozen=True)
class Reordered:
    """A layer whose weight has its columns in another order than the rows have their features. Is a `Linear`."""

    product: Linear
    order: Tensor  # int64 [K]

    def __call__(self, rows: Tensor) -> Tensor:
        return self.product(rows.index_select(-1, self.order))
