"""MXFP4 as gpt-oss has it: the experts of a layer in one tensor, `NAME_blocks`, with their scales in `NAME_scales`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ....errors import CheckpointError
from ..scheme import Scheme, Settings, StoredWeight, Tensors
from .fp4 import BYTES, MX_GROUP, MX_SCALES, mxfp4_weight


class Mxfp4(Scheme):
    """A module is the parameter of all experts; its rows are those of one expert after the other."""

    scales: Sequence[str] = ("_scales",)
    endings: Mapping[str, int] = {"_blocks": 2, "_scales": 0}

    def __init__(self, config: Settings) -> None:
        self.name = f"MXFP4, 4 bits in groups of {MX_GROUP}, only weights"

    def read(self, tensors: Tensors, module: str, rows: int, columns: int) -> StoredWeight:
        name = f"{module}_blocks"
        shape = tensors.shape(name)
        blocks = (*shape[:-2], columns // MX_GROUP, MX_GROUP // 2)
        if math.prod(shape[:-2]) != rows:
            raise CheckpointError(f"tensor {name!r} has shape {list(shape)}, expected {rows} rows in all")
        numbers = tensors.read(name, blocks, BYTES).reshape(rows, -1)
        scales = tensors.read(f"{module}_scales", blocks[:-1], MX_SCALES).reshape(rows, -1)
        return mxfp4_weight(numbers, scales, columns, module)
