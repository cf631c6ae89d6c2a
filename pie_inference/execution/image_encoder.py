"""Takes tiles of images through a vision tower, from pixels to vectors that stand in place of embedded tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..device.tensors import upload
from ..kv_cache.pages import lazy_zeros
from ..models.image_processor import ImageProcessor
from ..models.vision import VisionConfig, VisionTower
from ..protocol import Array

AT_A_TIME = 4
"""Tiles that run together, which bounds the memory for what is within a layer."""


class Layers(NamedTuple):
    """A tile, and the layers that it is to go through. `source`: a row of pixels for a tile at its beginning, else the
    slot of its state."""

    source: int
    begin: int
    end: int


class ImageEncoder:
    """A vision tower behind the last step of preparing images, and the states of tiles that are under way."""

    def __init__(
        self,
        config: VisionConfig,
        tower: VisionTower,
        processor: ImageProcessor,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._last = config.layers
        self._tower = tower
        self._device = device
        self._values = upload(_normalized(processor), device).to(dtype)
        self._states = lazy_zeros((slots, *config.state), dtype, device)

    def run(self, parts: Sequence[Layers], tiles: Array) -> Mapping[Layers, Tensor]:
        """What each part gives: [tile_embeds, hidden_size] if it ends with the last layer, else a state. Nothing is
        kept of it. `tiles`: pixels, uint8 [N, S, S, 3]."""
        found = dict[Layers, Tensor]()
        for some in _together(parts):
            begin, end = some[0].begin, some[0].end
            sources = [part.source for part in some]
            if begin:
                states = torch.stack([self._states[slot] for slot in sources])
            else:
                states = self._tower.begin(self._numbers(tiles[sources]))
            states = self._tower.run(states, begin, end)
            found.update(zip(some, self._tower.finish(states) if end == self._last else states, strict=True))
        return found

    def keep(self, slot: int, state: Tensor) -> None:
        """The state of a tile, until it goes on."""
        self._states[slot] = state

    def _numbers(self, tiles: Array) -> Tensor:
        pixels = upload(torch.from_numpy(np.ascontiguousarray(tiles.transpose(0, 3, 1, 2))), self._device).long()
        return torch.stack([self._values[channel][pixels[:, channel]] for channel in range(3)], 1)


def _together(parts: Sequence[Layers]) -> Iterator[Sequence[Layers]]:
    """Those that go through the same layers, few at a time, each once."""
    by_layers: dict[tuple[int, int], list[Layers]] = {}
    for part in dict.fromkeys(parts):
        by_layers.setdefault((part.begin, part.end), []).append(part)
    for same in by_layers.values():
        for first in range(0, len(same), AT_A_TIME):
            yield same[first : first + AT_A_TIME]


def _normalized(processor: ImageProcessor) -> Tensor:
    """What each value of a pixel of each channel becomes, float32 [3, 256], with the rounding of transformers."""
    scaled = (np.arange(256, dtype=np.float64) * processor.factor).astype(np.float32)
    mean, deviation = np.array(processor.mean, np.float32), np.array(processor.deviation, np.float32)
    return torch.from_numpy((scaled - mean[:, None]) / deviation[:, None])
