"""What the rest of the worker knows of a model that sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..protocol import ImageLayout

__all__ = ["ImageLayout", "VisionConfig", "VisionTower"]


@dataclass(frozen=True)
class VisionConfig:
    """How a model takes images."""

    tile_size: int  # pixels of a side
    tile_embeds: int  # vectors that a tile becomes
    placeholder: int  # the token that stands for each of them
    layout: ImageLayout
    layers: int  # that a tile passes through, at least 1
    layer_work: int  # multiplications in one of them
    state: tuple[int, int]  # shape of what is between two of them


class VisionTower(Protocol):
    """Computes what a model sees, layer by layer. States are [N, *state]."""

    def begin(self, tiles: Tensor) -> Tensor:
        """Tiles [N, 3, tile_size, tile_size], normalized, in the model's dtype, to states before the first layer."""

    def run(self, states: Tensor, begin: int, end: int) -> Tensor:
        """States before layer `begin` to states before layer `end`."""

    def finish(self, states: Tensor) -> Tensor:
        """States behind the last layer to [N, tile_embeds, hidden_size]: what stands in place of embedded tokens."""
