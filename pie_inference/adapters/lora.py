"""Linear layers that take adapters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ..ops.interface import Linear
from .groups import Groups
from .products.interface import LayerLoras, Lora, Products
from .products.torch_products import TorchProducts


class Running:
    """What the batch that runs now asks of the layers, and the kernels with which they do it. None: no row has an
    adapter."""

    def __init__(self) -> None:
        self.groups: Groups | None = None
        self.products: Products = TorchProducts()

    @contextmanager
    def using(self, groups: Groups | None) -> Iterator[None]:
        """Runs the layers with these groups."""
        before, self.groups = self.groups, groups
        try:
            yield
        finally:
            self.groups = before


@dataclass(frozen=True)
class Module:
    """A module of the checkpoint, or a part of it, whose outputs are outputs of a layer: rows `first` to `last` of the
    module's weight, which has `total`, are the layer's outputs from `column` on, all of this rank."""

    name: str
    total: int
    first: int
    last: int
    column: int


class AdaptedLinear:
    """A layer to which adapters are added while they are loaded. Implements `Linear`.

    With split "inputs" a rank has a share of the columns of W, and of A; the ranks' results are added behind both. With
    split "outputs" it has a share of the rows of W, and of B.
    """

    def __init__(self, base: Linear, modules: Sequence[Module], ins: int, own_ins: slice, running: Running) -> None:
        """`ins`: input features over all ranks; `own_ins`: those of this rank."""
        self.modules = tuple(modules)
        self.ins = ins
        self.own_ins = own_ins
        self.loras = LayerLoras()
        self._base = base
        self._running = running

    def __call__(self, rows: Tensor) -> Tensor:
        results = self._base(rows)
        groups = self._running.groups
        if groups is not None and self.loras.most_features:
            self._running.products.add(results, rows, groups, self.loras)
        return results

    def prepare(self, weights: dict[str, tuple[Tensor, Tensor]], dtype: torch.dtype, device: torch.device) -> Lora:
        """What an adapter is at this layer. `weights`: A and B of those of its modules that the adapter has, whole,
        with the scale in B."""
        used = [module for module in self.modules if module.name in weights]
        downs = {module.name: weights[module.name][0] for module in used}
        begins = dict(zip(downs, accumulate(map(len, downs.values()), initial=0), strict=False))
        joined = torch.cat([down[:, self.own_ins] for down in downs.values()])
        outs = max(module.column + module.last - module.first for module in self.modules)
        up = torch.zeros(len(joined), outs)
        for module in used:
            begin, own = begins[module.name], weights[module.name][1][module.first : module.last].t()
            up[begin : begin + len(own), module.column : module.column + own.shape[1]] = own
        return Lora(joined.to(device, dtype).contiguous(), up.to(device, dtype))
