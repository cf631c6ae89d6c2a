"""Weights that are written piece by piece: safetensors' own writer needs all tensors in memory."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

BLOCK_BYTES = 64 << 20
"""Of random numbers, which are written over and over: making all weights would take minutes."""
ITEM_BYTES = 2  # bfloat16


def write_weights(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Writes a file of tensors in bfloat16: weights from a normal distribution of width 0.02, norms 1."""
    sizes = {name: ITEM_BYTES * math.prod(shape) for name, shape in shapes.items()}
    header, offset = dict[str, Any](), 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + sizes[name]]}
        offset += sizes[name]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = _block(0.02 * torch.randn(BLOCK_BYTES // ITEM_BYTES, generator=torch.Generator().manual_seed(0)))
    ones = _block(torch.ones(BLOCK_BYTES // ITEM_BYTES // 64))
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, size in sizes.items():
            block = ones if name.endswith("norm.weight") else random
            for written in range(0, size, len(block)):
                file.write(block[: size - written])


def _block(values: torch.Tensor) -> memoryview:
    return memoryview(values.to(torch.bfloat16).view(torch.uint8).numpy().tobytes())
