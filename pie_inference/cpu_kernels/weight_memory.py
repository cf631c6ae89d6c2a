"""Memory for packed weights, in huge pages: with pages of 4 KB, address translation costs a fifth of the memory's
speed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..device.host_memory import lazy_zero_bytes

CHUNK = 64 << 20
ALIGNMENT = 64
"""Alignment in bytes: a cache line, and the longest vector."""


class WeightMemory:
    """Hands out memory in pieces. Neighbouring pieces are freed together, once none of them is used."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)

    def allocate(self, size: int) -> Tensor:
        """Zeros, uint8 [size], aligned to cache lines. Parts that are never written take no memory."""
        if size > len(self._chunk):
            self._chunk = torch.from_numpy(lazy_zero_bytes(max(size, CHUNK)))
        piece = self._chunk[:size]
        self._chunk = self._chunk[-(-size // ALIGNMENT) * ALIGNMENT :]
        return piece
