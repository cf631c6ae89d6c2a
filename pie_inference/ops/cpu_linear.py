"""Linear layers with the kernels of `cpu_kernels`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..cpu_kernels.library import ADDRESS, INTEGER, SUFFIX, Kernel, Library
from ..cpu_kernels.weight_memory import WeightMemory

LANES = 16
"""Outputs in one vector; packed weights are padded to whole vectors."""
STEP_BYTES = 4
"""Features are packed and read 32 bits at a time."""


class LinearPacker:
    """Makes linear layers of one dtype, float32 or bfloat16; their weights share large pieces of memory."""

    def __init__(self, library: Library, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._memory = WeightMemory()
        a, n = ADDRESS, INTEGER
        self._multiply = library.kernel(f"linear_{SUFFIX[dtype]}", a, n, n, a, a, n, n, a, n)
        self._pack = {
            source: library.kernel(f"pack_{name}_{SUFFIX[dtype]}", a, n, n, a, n)
            for source, name in (SUFFIX | {torch.float16: "half"}).items()
        }

    def make(self, parts: Sequence[Tensor], bias: Tensor | None) -> PackedLinear:
        """A layer of weights [outs, ins], with their outputs side by side. Weights are converted while they are
        packed."""
        stored = self._readable(parts)
        outs, ins = sum(len(part) for part in stored), stored[0].shape[1]
        per_step = STEP_BYTES // self._dtype.itemsize
        weights = self._memory.allocate(-(-outs // LANES) * LANES * -(-ins // per_step) * STEP_BYTES)
        rows = np.concatenate([_row_addresses(part) for part in stored])
        pack = self._pack[stored[0].dtype]
        pack(rows.ctypes.data, outs, ins, weights.data_ptr(), torch.get_num_threads())
        return PackedLinear(self._multiply, weights, None if bias is None else bias.contiguous(), outs, ins, per_step)

    def _readable(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Weights as tensors that can be packed: contiguous rows, all of one supported dtype."""
        dtypes = {part.dtype for part in parts}
        as_they_are = len(dtypes) == 1 and dtypes <= self._pack.keys()
        converted = parts if as_they_are else [part.to(self._dtype) for part in parts]
        return [part if part.stride(1) == 1 else part.contiguous() for part in converted]


class PackedLinear:
    """Implements `Linear` with packed weights."""

    def __init__(
        self, kernel: Kernel, weights: Tensor, bias: Tensor | None, outs: int, ins: int, per_step: int
    ) -> None:
        self._kernel = kernel
        self._memory = (weights, bias)
        self._outs = outs
        self._ins = ins
        self._per_step = per_step
        self._padding = -ins % per_step
        self._layer = (weights.data_ptr(), None if bias is None else bias.data_ptr(), outs, -(-ins // per_step))

    def __call__(self, rows: Tensor) -> Tensor:
        output = rows.new_empty(*rows.shape[:-1], self._outs)
        matrix = self._readable(rows)
        self._kernel(
            matrix.data_ptr(),
            matrix.stride(0),
            len(matrix),
            *self._layer,
            output.data_ptr(),
            torch.get_num_threads(),
        )
        return output

    def _readable(self, rows: Tensor) -> Tensor:
        """Rows [M, ins] as the kernel can read them, padded to whole steps."""
        matrix = rows if rows.dim() == 2 else rows.reshape(-1, self._ins)
        if self._padding:
            return F.pad(matrix, (0, self._padding))
        return matrix if matrix.stride(1) == 1 and matrix.stride(0) % self._per_step == 0 else matrix.contiguous()


def _row_addresses(part: Tensor) -> NDArray[np.int64]:
    stride = part.stride(0) * part.element_size()
    return part.data_ptr() + np.arange(len(part), dtype=np.int64) * stride
