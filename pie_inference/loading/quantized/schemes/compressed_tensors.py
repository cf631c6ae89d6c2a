"""The format of compressed-tensors (llm-compressor, vLLM): packed and plain integers, and float8 numbers. Only weights
are served in it, activations in the model's number format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....errors import CheckpointError
from ....quantization.formats import QuantizedWeight
from ..scheme import (
    CONFIG,
    FLOATING,
    GROUPS,
    TAKE_THE_ORIGINAL,
    UNUSED,
    WORDS,
    Scheme,
    Settings,
    StoredWeight,
    Tensors,
    make_format,
    scale_of_all,
    stored_integers,
    stored_zeros,
    unpack,
)
from .fp8 import BLOCK, VALUES, checked_values, read_blocks

BITS = {"pack-quantized": [4, 8], "int-quantized": [8], "naive-quantized": [8], "float-quantized": [8]}


def settings_of_weights(config: Settings) -> Settings:
    """How weights are quantized. Raises CheckpointError for what beside them is not supported."""
    config.refuse("transform_config", "transforms of activations are not supported")
    sparsity = config.get("sparsity_config")
    if sparsity and (not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense"):
        config.refuse("sparsity_config", "sparse weights are not supported")
    groups = config.mapping("config_groups")
    found = [groups.mapping(name) for name in groups]
    if not found:
        raise CheckpointError(f"{CONFIG}.config_groups: it names no group of modules; {TAKE_THE_ORIGINAL}")
    for one in found:
        one.refuse("output_activations", "scales of outputs are not supported")
        if one.get("weights") != found[0].get("weights"):
            raise CheckpointError(
                f"{CONFIG}.config_groups: groups with different weights are not supported; {TAKE_THE_ORIGINAL}"
            )
    return found[0].mapping("weights")


class CompressedTensors(Scheme):
    """All quantized modules of a checkpoint must have one form."""

    scales: Sequence[str] = (".weight_scale",)
    endings: Mapping[str, int]

    def __init__(self, config: Settings) -> None:
        self._format: str = config.one_of("format", list(BITS))
        weights = settings_of_weights(config)
        self._bits: int = weights.one_of("num_bits", BITS[self._format])
        self._float = weights.one_of("type", ["float"] if self._format == "float-quantized" else ["int", "float"])
        if self._format == "naive-quantized" and self._float == "float":
            self._format = "float-quantized"
        strategies = ["tensor", "channel", "group", *(["block"] if self._format == "float-quantized" else [])]
        self._strategy: str = weights.one_of("strategy", strategies)
        if self._strategy == "block":
            weights.one_of("block_structure", [[BLOCK, BLOCK]])
        self._group: int | None = weights.one_of("group_size", GROUPS) if self._strategy == "group" else None
        has_zeros = self._format == "pack-quantized" and self._strategy != "tensor"
        self._symmetric: bool = weights.one_of("symmetric", [True, False] if has_zeros else [True], True)
        weights.one_of("actorder", [None, False, "weight", "static"])
        where = "" if self._group is None else f" of {self._group}"
        self.name = f"compressed-tensors {self._format}, {self._bits} bits by {self._strategy}{where}, only weights"
        packed = 32 // self._bits
        scales = {".weight_scale": 0, ".weight_zero_point": 0, ".weight_shape": 0, **UNUSED}
        self.endings = {".weight_packed": packed, **scales}

    def read(self, tensors: Tensors, module: str, rows: int, columns: int) -> StoredWeight:
        if self._strategy == "block":
            return StoredWeight(read_blocks(tensors, module, "weight_scale", rows, columns))
        if self._format == "float-quantized":
            values = checked_values(tensors.read(f"{module}.weight", (rows, columns), VALUES), module)
            format = make_format("float-quantized", "fp8", self._group, columns, module)
        elif self._format == "pack-quantized":
            words = tensors.read(f"{module}.weight_packed", (rows, -(-columns * self._bits // 32)), WORDS)
            values = stored_integers(unpack(words, self._bits, 1)[:, :columns], self._bits)
            format = make_format("pack-quantized", "int4" if self._bits == 4 else "int8", self._group, columns, module)
        else:
            values = tensors.read(f"{module}.weight", (rows, columns), ("I8",))
            format = make_format("int-quantized", "int8", self._group, columns, module)
        groups = columns // (self._group or columns)
        name = f"{module}.weight_scale"
        if self._strategy == "tensor":
            scales = scale_of_all(tensors, name, rows)
        else:
            scales = tensors.read(name, (rows, groups), FLOATING)
        if self._symmetric:
            return StoredWeight(QuantizedWeight(format, values, scales, None))
        packed = tensors.read(f"{module}.weight_zero_point", (-(-rows * self._bits // 32), groups), WORDS)
        zeros = stored_zeros(unpack(packed, self._bits, 0)[:rows], self._bits)
        return StoredWeight(QuantizedWeight(format, values, scales, zeros, True))
