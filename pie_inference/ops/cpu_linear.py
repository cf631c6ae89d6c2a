"""Linear layers with the kernels of `cpu_kernels`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cpu_kernels.library import ADDRESS, INTEGER, SUFFIX, Library
from ..cpu_kernels.linear import UNIT, CpuLinear
from ..cpu_kernels.weight_memory import WeightMemory
from .interface import Linear

STEP_BYTES = 4
"""Features are packed and read 32 bits at a time."""


class LinearPacker:
    """Makes linear layers of one dtype, float32 or bfloat16; their weights share large pieces of memory."""

    def __init__(self, library: Library, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._memory = WeightMemory()
        self._library = library
        a, n = ADDRESS, INTEGER
        self._pack = {
            source: library.kernel(f"pack_{name}_{SUFFIX[dtype]}", a, n, n, a, n)
            for source, name in (SUFFIX | {torch.float16: "half"}).items()
        }

    def make(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        """A layer of weights [outs, ins], with their outputs side by side. Weights are converted while they are
        packed."""
        stored = self._readable(parts)
        outs, ins = sum(len(part) for part in stored), stored[0].shape[1]
        per_step = STEP_BYTES // self._dtype.itemsize
        weights = self._memory.allocate(-(-outs // UNIT) * UNIT * -(-ins // per_step) * STEP_BYTES)
        rows = np.concatenate([_row_addresses(part) for part in stored])
        pack = self._pack[stored[0].dtype]
        pack(rows.ctypes.data, outs, ins, weights.data_ptr(), torch.get_num_threads())
        kept = None if bias is None else bias.contiguous()
        return CpuLinear(self._library, SUFFIX[self._dtype], weights, (outs, ins), kept, padding=per_step)

    def _readable(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Weights as tensors that can be packed: contiguous rows, all of one supported dtype."""
        dtypes = {part.dtype for part in parts}
        as_they_are = len(dtypes) == 1 and dtypes <= self._pack.keys()
        converted = parts if as_they_are else [part.to(self._dtype) for part in parts]
        return [part if part.stride(1) == 1 else part.contiguous() for part in converted]


def _row_addresses(part: Tensor) -> NDArray[np.int64]:
    stride = part.stride(0) * part.element_size()
    return part.data_ptr() + np.arange(len(part), dtype=np.int64) * stride
