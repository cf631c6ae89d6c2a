"""Linear layers that take adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
class Up:
    """The second product of an adapter: hidden features `begin` to `end` to the layer's outputs from `column` on."""

    begin: int
    end: int
    column: int
    weight: Tensor  # [outputs, end - begin], with the scale of the adapter in it


@dataclass(frozen=True)
class Lora:
    """One adapter at one layer, on this rank."""

    down: Tensor  # [features of all modules together, in_features]
    ups: tuple[Up, ...]

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + sum(up.weight.nbytes for up in self.ups)

    def add_to(self, results: Tensor, rows: Tensor) -> None:
        """Adds what it gives for rows [T, in_features] to their results [T, out_features], which may be a view."""
        hidden = F.linear(rows, self.down)
        for up in self.ups:
            columns = results[:, up.column : up.column + len(up.weight)]
            columns.addmm_(hidden[:, up.begin : up.end], up.weight.t())


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
        if isinstance(groups.rows, slice):
            self._add_parts(results[groups.rows], rows[groups.rows], groups.parts)
            return
        changes = results.new_zeros(len(groups.rows), results.shape[1])
        self._add_parts(changes, rows.index_select(0, groups.rows), groups.parts)
        results.index_add_(0, groups.rows, changes)

    def _add_parts(self, results: Tensor, rows: Tensor, parts: Sequence[tuple[int, int, int]]) -> None:
        for number, begin, end in parts:
            lora = self.loras.get(number)
            if lora is not None:
                lora.add_to(results[begin:end], rows[begin:end])

    def prepare(self, weights: dict[str, tuple[Tensor, Tensor]], dtype: torch.dtype, device: torch.device) -> Lora:
        """What an adapter is at this layer. `weights`: A and B of those of its modules that the adapter has, whole,
        with the scale in B."""
        downs, ups, begins = [], [], dict[str, int]()
        width = 0
        for module in self.modules:
            if module.name not in weights:
                continue
            down, up = weights[module.name]
            if module.name not in begins:
                begins[module.name] = width
                width += len(down)
                downs.append(down[:, self.own_ins])
            begin = begins[module.name]
            own = up[module.first : module.last].to(device, dtype).contiguous()
            ups.append(Up(begin, begin + len(down), module.column, own))
        return Lora(torch.cat(downs).to(device, dtype).contiguous(), tuple(ups))
