"""Products by Triton kernels: two launches for all adapters of a layer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..groups import Groups
from . import triton_kernels as kernels
from .interface import LEAST_FEATURES, LayerLoras

BLOCK_INS, BLOCK_OUTS, BLOCK_FEATURES = 128, 128, 64
LEAST_SPLIT, MOST_SPLITS = 512, 8
"""A few rows of one adapter are a single tile: its inputs are shared by programs, at least so many features each."""


class TritonProducts:
    """Implements `Products`. `dtype` is that of the adapters."""

    capturable = True

    def __init__(self, dtype: torch.dtype) -> None:
        self._kind = kernels.KINDS[dtype]

    def add(self, results: Tensor, inputs: Tensor, groups: Groups, loras: LayerLoras) -> None:
        assert results.stride(1) == inputs.stride(1) == 1
        ins, outs, most = inputs.shape[1], results.shape[1], loras.most_features
        split = max(LEAST_SPLIT, -(-ins // MOST_SPLITS // BLOCK_INS) * BLOCK_INS)
        splits, block = -(-ins // split), min(BLOCK_FEATURES, most)
        hidden = torch.empty(splits, len(groups.rows), most, dtype=torch.float32, device=results.device)
        tiles, slots = len(groups.tiles), loras.table.shape[1]
        shared = {"KIND": self._kind, "MOST_FEATURES": most, "TILE_ROWS": groups.tile_rows}
        kernels.shrink[(tiles, -(-most // block), splits)](
            hidden,
            inputs,
            groups.rows,
            groups.tiles,
            loras.table,
            slots,
            inputs.stride(0),
            hidden.stride(0),
            **shared,
            INS=ins,
            BLOCK_FEATURES=block,
            BLOCK_INS=BLOCK_INS,
            SPLIT_INS=split,
        )
        kernels.expand[(tiles, -(-outs // BLOCK_OUTS))](
            results,
            hidden,
            groups.rows,
            groups.tiles,
            loras.table,
            slots,
            results.stride(0),
            hidden.stride(0),
            **shared,
            OUTS=outs,
            BLOCK_FEATURES=LEAST_FEATURES if most == LEAST_FEATURES else 2 * LEAST_FEATURES,
            BLOCK_OUTS=BLOCK_OUTS,
            SPLITS=splits,
        )
