"""Turns pixels of tiles into vectors that stand in place of embedded tokens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..device.tensors import upload
from ..loading.image_processor import ImageProcessor
from ..models.vision import VisionTower
from ..protocol import Array

AT_A_TIME = 4
"""Tiles that run together, which bounds the memory for their patches."""


class ImageEncoder:
    """A vision tower behind the last step of preparing images."""

    def __init__(self, tower: VisionTower, processor: ImageProcessor, dtype: torch.dtype, device: torch.device) -> None:
        self._tower = tower
        self._device = device
        self._values = upload(_normalized(processor), device).to(dtype)

    def encode(self, tiles: Array) -> Tensor:
        """Tiles uint8 [N, S, S, 3] to [N, tile_embeds, hidden_size]."""
        parts = range(0, len(tiles), AT_A_TIME)
        return torch.cat([self._encode(tiles[first : first + AT_A_TIME]) for first in parts])

    def _encode(self, tiles: Array) -> Tensor:
        pixels = upload(torch.from_numpy(np.ascontiguousarray(tiles.transpose(0, 3, 1, 2))), self._device).long()
        return self._tower(torch.stack([self._values[channel][pixels[:, channel]] for channel in range(3)], 1))


def _normalized(processor: ImageProcessor) -> Tensor:
    """What each value of a pixel of each channel becomes, float32 [3, 256], with the rounding of transformers."""
    scaled = (np.arange(256, dtype=np.float64) * processor.factor).astype(np.float32)
    mean, deviation = np.array(processor.mean, np.float32), np.array(processor.deviation, np.float32)
    return torch.from_numpy((scaled - mean[:, None]) / deviation[:, None])
