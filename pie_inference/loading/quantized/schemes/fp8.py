"""Weights of float8 numbers, `weight`: with scales of blocks, as in DeepSeek-V3 and Qwen3, or with one scale each, as
in Ministral 3, and in what AutoFP8 and NVIDIA's Model Optimizer wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ....errors import CheckpointError
from ....quantization.formats import QuantizedWeight
from ....quantization.names import Format
from ..scheme import FLOATING, UNUSED, Scheme, Settings, StoredWeight, Tensors, scale_of_all

BLOCK = 128
VALUES = ("F8_E4M3",)


class Fp8Blocks(Scheme):
    """A weight has a scale for each block."""

    scales: Sequence[str] = (".weight_scale_inv",)
    endings: Mapping[str, int] = {".weight_scale_inv": 0}

    def __init__(self, config: Settings) -> None:
        config.one_of("activation_scheme", ["dynamic"], "dynamic")
        config.one_of("fmt", ["e4m3"], "e4m3")
        config.one_of("weight_block_size", [[BLOCK, BLOCK]])
        self.name = f"fp8 with blocks of {BLOCK} x {BLOCK}"

    def read(self, tensors: Tensors, module: str, rows: int, columns: int) -> StoredWeight:
        return StoredWeight(read_blocks(tensors, module, "weight_scale_inv", rows, columns))


class Fp8Whole(Scheme):
    """A weight has one scale."""

    def __init__(self, name: str, scale: str) -> None:
        """`scale`: what it is called in the file."""
        self.name = f"{name} with a scale for each weight, only weights"
        self.scales: Sequence[str] = (f".{scale}",)
        self.endings: Mapping[str, int] = {f".{scale}": 0, **UNUSED}
        self._scale = scale

    def read(self, tensors: Tensors, module: str, rows: int, columns: int) -> StoredWeight:
        values = checked_values(tensors.read(f"{module}.weight", (rows, columns), VALUES), module)
        scales = scale_of_all(tensors, f"{module}.{self._scale}", rows)
        return StoredWeight(QuantizedWeight(Format("fp8-whole", "fp8", None), values, scales, None))


def fp8(config: Settings) -> Fp8Blocks | Fp8Whole:
    """The scheme of a file that names blocks, or none."""
    if config.get("weight_block_size") is not None:
        return Fp8Blocks(config)
    config.one_of("activation_scheme", ["dynamic", "static"], "dynamic")
    config.one_of("fmt", ["e4m3"], "e4m3")
    return Fp8Whole("fp8", "weight_scale_inv" if "weight_block_size" in config else "weight_scale")


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
