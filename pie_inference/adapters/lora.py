"""Linear layers that take adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.interface import Linear


@dataclass(frozen=True)
class Groups:
    """The rows of a batch that have adapters, sorted by adapter."""

    rows: slice | Tensor  # contiguous ones, in order; or their indices, int64 on the device
    parts: Sequence[tuple[int, int, int]]  # number of an adapter, and which of these rows it has: begin and end


class Running:
    """What the batch that runs now asks of the layers. None: no row has an adapter."""

    def __init__(self) -> None:
        self.groups: Groups | None = None


@dataclass(frozen=True)
class Module:
    """A module of the checkpoint, or a part of it, whose outputs are outputs of a layer: rows `first` to `last` of the
    module's weight, which has `total`, are the layer's outputs from `column` on, all of this rank."""

    name: str
    total: int
    first: int
    last: int
    column: int


@dataclass(frozen=True)
class Lora:
    """One adapter at one layer, on this rank: A and B of its modules there, joined so that they are two products. Where
    a module has no outputs, its part of `up` is zero; small products are cheaper than more of them."""

    down: Tensor  # [features of all modules together, in_features]
    up: Tensor  # [out_features, features], with the scale of the adapter in it

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + self.up.nbytes

    def add_to(self, results: Tensor, rows: Tensor) -> None:
        """Adds what it gives for rows [T, in_features] to their results [T, out_features], which may be a view."""
        results.addmm_(F.linear(rows, self.down), self.up.t())


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
        self.loras: dict[int, Lora] = {}
        self._base = base
        self._running = running

    def __call__(self, rows: Tensor) -> Tensor:
        results = self._base(rows)
        groups = self._running.groups
        if groups is not None and self.loras:
            self._add(results, rows, groups)
        return results

    def _add(self, results: Tensor, rows: Tensor, groups: Groups) -> None:
        """Adapters may be in another number format than the layer."""
        some, dtype = groups.rows, next(iter(self.loras.values())).down.dtype
        if isinstance(some, slice) and dtype == results.dtype:
            self._add_parts(results[some], rows[some], groups.parts)
            return
        chosen = (rows[some] if isinstance(some, slice) else rows.index_select(0, some)).to(dtype)
        changes = torch.zeros(len(chosen), results.shape[1], dtype=dtype, device=results.device)
        self._add_parts(changes, chosen, groups.parts)
        if isinstance(some, slice):
            results[some].add_(changes)
        else:
            results.index_add_(0, some, changes.to(results.dtype))

    def _add_parts(self, results: Tensor, rows: Tensor, parts: Sequence[tuple[int, int, int]]) -> None:
        for number, begin, end in parts:
            lora = self.loras.get(number)
            if lora is not None:
                lora.add_to(results[begin:end], rows[begin:end])

    def prepare(self, weights: dict[str, tuple[Tensor, Tensor]], dtype: torch.dtype, device: torch.device) -> Lora:
        """What an adapter is at this layer. `weights`: A and B of those of its modules that the adapter has, whole,
        with the scale in B."""
        used = [module for module in self.modules if module.name in weights]
        downs = {module.name: weights[module.name][0] for module in used}
        begins = dict(zip(downs, accumulate(map(len, downs.values()), initial=0), strict=False))
        joined = torch.cat([down[:, self.own_ins] for down in downs.values()])
        outs = max(module.column + module.last - module.first for module in self.modules)
        up = torch.zeros(outs, len(joined))
        for module in used:
            begin, own = begins[module.name], weights[module.name][1][module.first : module.last]
            up[module.column : module.column + len(own), begin : begin + own.shape[1]] = own
        return Lora(joined.to(device, dtype).contiguous(), up.to(device, dtype))
