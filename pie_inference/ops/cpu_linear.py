"""Linear layers with the kernels of `cpu_kernels`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cpu_kernels.library import ADDRESS, INTEGER, SUFFIX, Library
from ..cpu_kernels.linear import NARROW, UNIT, CpuLinear
from ..device.host_memory import lazy_zero_bytes
from .interface import Linear

CHUNK = 64 << 20
ALIGNMENT = 64
"""Alignment in bytes: a cache line, and the longest vector."""


class WeightMemory:
    """Hands out memory for packed weights, in huge pages: with pages of 4 KB, address translation costs a fifth of the
    memory's speed. Neighbouring pieces are freed together, once none of them is used."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)

    def allocate(self, size: int) -> Tensor:
        """Zeros, uint8 [size], aligned to cache lines. Parts that are never written take no memory."""
        if size > len(self._chunk):
            self._chunk = torch.from_numpy(lazy_zero_bytes(max(size, CHUNK)))
        piece = self._chunk[:size]
        self._chunk = self._chunk[-(-size // ALIGNMENT) * ALIGNMENT :]
        return piece


STEP_BYTES = 4
"""Features are packed and read 32 bits at a time."""
SOURCES = SUFFIX | {torch.float16: "half"}
"""Names of the formats that can be packed."""


class LinearPacker:
    """Makes linear layers of one dtype, float32 or bfloat16; their weights share large pieces of memory.

    Weights of float32 layers that are bfloat16 numbers, as most checkpoints have them, are kept as such: a token needs
    half of the memory's time, and results are the same to the last bit.
    """

    def __init__(self, library: Library, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._memory = WeightMemory()
        self._library = library
        a, n = ADDRESS, INTEGER
        self._pack = {
            (source, kept): library.kernel(f"pack_{SOURCES[source]}_{SUFFIX[kept]}", a, n, n, a, n)
            for source in SOURCES
            for kept in {dtype, torch.bfloat16}
        }

    def make(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        """A layer of weights [outs, ins], with their outputs side by side. Weights are converted while they are
        packed."""
        stored = self._readable(parts)
        outs, ins = sum(len(part) for part in stored), stored[0].shape[1]
        fits = self._dtype == torch.bfloat16 or all(map(_is_bfloat16, stored))
        kept = torch.bfloat16 if fits else self._dtype
        per_step = STEP_BYTES // kept.itemsize
        weights = self._memory.allocate(-(-outs // UNIT) * UNIT * -(-ins // per_step) * STEP_BYTES)
        rows = np.concatenate([_row_addresses(part) for part in stored])
        pack = self._pack[stored[0].dtype, kept]
        pack(rows.ctypes.data, outs, ins, weights.data_ptr(), torch.get_num_threads())
        form = SUFFIX[kept] if kept == self._dtype else NARROW
        own_bias = None if bias is None else bias.contiguous()
        return CpuLinear(self._library, form, weights, (outs, ins), own_bias, padding=per_step)

    def _readable(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Weights as tensors that can be packed: contiguous rows, all of one supported dtype."""
        dtypes = {part.dtype for part in parts}
        as_they_are = len(dtypes) == 1 and dtypes <= SOURCES.keys()
        converted = parts if as_they_are else [part.to(self._dtype) for part in parts]
        return [part if part.stride(1) == 1 else part.contiguous() for part in converted]


def _is_bfloat16(part: Tensor) -> bool:
    """Whether all numbers are bfloat16 numbers, whatever their dtype."""
    if part.dtype != torch.float32:
        return part.dtype == torch.bfloat16
    lower = part.view(torch.int16)[:, ::2]  # half of each number, where memory has the lowest byte first
    return not (lower[:1].any() or lower.any())


def _row_addresses(part: Tensor) -> NDArray[np.int64]:
    stride = part.stride(0) * part.element_size()
    return part.data_ptr() + np.arange(len(part), dtype=np.int64) * stride
