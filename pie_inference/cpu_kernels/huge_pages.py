"""Memory for weights, in pages of 2 MB where Linux has them: with pages of 4 KB, looking up addresses costs a fifth of
the memory's speed."""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

PAGE = 2 << 20
CHUNK = 64 << 20
ALIGNMENT = 64
"""Bytes; a cache line, and the longest vector."""


class WeightMemory:
    """Hands out memory piece by piece. A piece is given back together with its neighbours, once none is used."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)

    def allocate(self, size: int) -> Tensor:
        """Zeros, uint8 [size], aligned to cache lines. What is never written takes no memory."""
        if size > len(self._chunk):
            self._chunk = _map(max(size, CHUNK))
        piece = self._chunk[:size]
        self._chunk = self._chunk[-(-size // ALIGNMENT) * ALIGNMENT :]
        return piece


def _map(size: int) -> Tensor:
    """New memory that begins with a huge page; mapped for as long as a tensor uses it."""
    mapping = mmap.mmap(-1, size + PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    return memory[-memory.data_ptr() % PAGE :]
