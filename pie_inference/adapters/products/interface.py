"""The seam to kernels that multiply rows with adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..groups import Groups

LEAST_FEATURES = 16


@dataclass(frozen=True)
class Lora:
    """One adapter at one layer, on this rank: A and B of its modules there, joined so that they are two products. Where
    a module has no outputs, its part of `up` is zero; small products are cheaper than more of them."""

    down: Tensor  # [features of all modules together, in_features]
    up: Tensor  # [features, out_features], with the scale of the adapter in it

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + self.up.nbytes


class LayerLoras:
    """The adapters at one layer, by slot.

    `table`, int64 [3, slots] on the device, has for each slot the addresses of `down` and `up`, which have no gaps, and
    the number of features; zeros where the adapter does not change this layer. It stays in its place, so what was
    recorded with it finds what is loaded later. `most_features`, a power of 2, is what any of them has had; 0: none has
    changed this layer yet.
    """

    def __init__(self) -> None:
        self.by_slot: dict[int, Lora] = {}
        self.table = torch.zeros(3, 0, dtype=torch.int64)
        self.most_features = 0

    def put(self, slot: int, lora: Lora) -> None:
        """Its column of `table` is written by `Adapters`, for all layers together."""
        self.by_slot[slot] = lora
        features = max(LEAST_FEATURES, 1 << (len(lora.down) - 1).bit_length())
        self.most_features = max(self.most_features, features)


class Products(Protocol):
    """Kernels for one kind of device."""

    capturable: bool
    """Whether a graph can record `add`: its launches depend on nothing of the groups but the shapes of tensors."""

    def add(self, results: Tensor, inputs: Tensor, groups: Groups, loras: LayerLoras) -> None:
        """Adds to the results [T, out_features] of a layer what the rows' adapters give for its inputs [T,
        in_features]. The numbers of either are side by side within a row."""
