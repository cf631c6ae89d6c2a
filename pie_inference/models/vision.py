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
    tile_work: int  # multiplications for a tile


class VisionTower(Protocol):
    """Computes what a model sees."""

    def __call__(self, tiles: Tensor) -> Tensor:
        """Tiles [N, 3, tile_size, tile_size], normalized, in the model's dtype, to [N, tile_embeds, hidden_size]: what
        stands in place of embedded tokens."""
