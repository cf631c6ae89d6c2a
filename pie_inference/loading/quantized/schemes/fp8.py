"""FP8 with a scale for each block of a weight, as DeepSeek-V3 and Qwen3 have it: `weight` and `weight_scale_inv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ....errors import CheckpointError
from ....quantization.formats import QuantizedWeight
from ....quantization.names import Format
from ..scheme import FLOATING, Settings, StoredWeight, Tensors

BLOCK = 128
VALUES = ("F8_E4M3",)


class Fp8Blocks:
    """Implements `Scheme`."""

    scales: Sequence[str] = (".weight_scale_inv",)
    endings: Mapping[str, int] = {".weight_scale_inv": 0}

    def __init__(self, config: Settings) -> None:
        config.one_of("activation_scheme", ["dynamic"], "dynamic")
        config.one_of("fmt", ["e4m3"], "e4m3")
        config.one_of("weight_block_size", [[BLOCK, BLOCK]])
        self.name = f"fp8 with blocks of {BLOCK} x {BLOCK}"

    def holds(self, tensors: Tensors, module: str) -> bool:
        return f"{module}.weight_scale_inv" in tensors

    def read(self, tensors: Tensors, module: str, rows: int, columns: int) -> StoredWeight:
        return StoredWeight(read_blocks(tensors, module, "weight_scale_inv", rows, columns))


def read_blocks(tensors: Tensors, module: str, scale: str, rows: int, columns: int) -> QuantizedWeight:
    """A weight of float8 numbers with scales [rows / 128, columns / 128]; the last blocks may be smaller."""
    name = f"{module}.{scale}"
    grid = (-(-rows // BLOCK), -(-columns // BLOCK))
    scales = tensors.read(name, grid, FLOATING)
    values = checked_values(tensors.read(f"{module}.weight", (rows, columns), VALUES), module)
    of_rows = scales.repeat_interleave(BLOCK, 0)[:rows]
    return QuantizedWeight(Format("fp8-block", "fp8", BLOCK if columns > BLOCK else None), values, of_rows, None)


def checked_values(values: Tensor, module: str) -> Tensor:
    """The values, if all are numbers. Raises CheckpointError."""
    if bool(((values.view(torch.uint8) & 0x7F) == 0x7F).any()):
        raise CheckpointError(f"tensor '{module}.weight': a value is not a number; the checkpoint is broken")
    return values
