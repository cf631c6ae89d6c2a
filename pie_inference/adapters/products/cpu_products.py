"""Products by the kernel of `cpu_kernels/low_rank.cpp`: one call for all adapters."""

from __future__ import annotations

import torch
from torch import Tensor

from ...cpu_kernels.library import ADDRESS, INTEGER, SUFFIX, Library
from ..groups import Groups
from .interface import LayerLoras


class CpuProducts:
    """Implements `Products` for rows in float32 or bfloat16, and adapters in float32."""

    capturable = True

    def __init__(self, library: Library, dtype: torch.dtype) -> None:
        a, n = ADDRESS, INTEGER
        arguments = (a, n, a, n, n, n, a, a, n, a, n, a, n, n)
        self._add = library.kernel(f"add_low_rank_{SUFFIX[dtype]}", *arguments)

    def add(self, results: Tensor, inputs: Tensor, groups: Groups, loras: LayerLoras) -> None:
        assert results.stride(1) == inputs.stride(1) == 1
        hidden = torch.empty(len(groups.rows), loras.most_features)
        self._add(
            results.data_ptr(),
            results.stride(0),
            inputs.data_ptr(),
            inputs.stride(0),
            inputs.shape[1],
            results.shape[1],
            groups.rows.data_ptr(),
            groups.tiles.data_ptr(),
            len(groups.tiles),
            loras.table.data_ptr(),
            loras.table.shape[1],
            hidden.data_ptr(),
            loras.most_features,
            torch.get_num_threads(),
        )
