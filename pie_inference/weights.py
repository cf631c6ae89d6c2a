"""Reads the folder of a Hugging Face checkpoint: config.json and memory-mapped safetensors, whole or in shards."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import CheckpointError
from .ops.interface import Linear, Ops
from .ranks import Ranks, share

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError naming the file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: unreadable: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return value


class Checkpoint:
    """The tensors of a model folder by name. Nothing is read before it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[Path, Any] = {}
        self._where = self._locate()

    def read(self, name: str, shape: Sequence[int]) -> Tensor:
        """A tensor as it is stored, memory-mapped. Raises CheckpointError where it is missing or of another shape."""
        if name not in self._where:
            raise CheckpointError(f"{self.folder}: tensor {name!r} is missing")
        path = self._where[name]
        try:
            tensor: Tensor = self._open(path).get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{path}: tensor {name!r} is unreadable: {error}") from error
        if tensor.shape != torch.Size(shape):
            raise CheckpointError(f"{path}: tensor {name!r} has shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor

    def num_parameters(self) -> int:
        """Numbers in all tensors together."""
        return sum(math.prod(self._open(path).get_slice(name).get_shape()) for name, path in self._where.items())

    def _locate(self) -> Mapping[str, Path]:
        """The file of each tensor."""
        index = self.folder / INDEX_FILE
        if (self.folder / SINGLE_FILE).exists() or not index.exists():
            path = self.folder / SINGLE_FILE
            return dict.fromkeys(self._open(path).keys(), path)
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{index}: 'weight_map' is missing")
        return {name: self.folder / file for name, file in weight_map.items()}

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path}: unreadable: {error}") from error
        return self._files[path]


Split = Literal["outputs", "inputs"]


@dataclass(frozen=True)
class Block:
    """Rows of a linear layer of the checkpoint, `NAME.weight` and perhaps `NAME.bias`.

    A layer that stores several side by side is named once for each: rows `first` to `first + rows` of `total`.
    """

    name: str
    rows: int
    first: int = 0
    total: int | None = None


class WeightLoader:
    """Hands a checkpoint's tensors to layers, on the device and in the dtype in which they serve, with the operations
    to use them. Of what is split over ranks, only this rank's share."""

    def __init__(
        self, checkpoint: Checkpoint, ops: Ops, dtype: torch.dtype, device: torch.device, ranks: Ranks
    ) -> None:
        self.ops = ops
        self.dtype = dtype
        self.device = device
        self.ranks = ranks
        self.bytes_loaded = 0
        self._checkpoint = checkpoint

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One tensor, whole. Raises CheckpointError."""
        tensor = self._checkpoint.read(name, shape).to(self.device, self.dtype)
        self.bytes_loaded += tensor.nbytes
        return tensor

    def linear(self, blocks: Sequence[Block], ins: int, *, bias: bool = False, split: Split | None = None) -> Linear:
        """The layer of `blocks` with `ins` input features, their outputs side by side: one large product beats several.

        split "outputs": each rank has its share of every block's rows. "inputs": its share of the columns, and the
        ranks' results are added. Raises CheckpointError.
        """
        parts = [self._weight(block, ins, split) for block in blocks]
        own_bias = bias and not (split == "inputs" and self.ranks.rank)
        multiply = self.ops.linear(parts, torch.cat([self._bias(b, split) for b in blocks]) if own_bias else None)
        self.bytes_loaded += sum(part.numel() for part in parts) * self.dtype.itemsize
        if split != "inputs" or self.ranks.size == 1:
            return multiply
        return lambda rows: self.ranks.sum_(multiply(rows))

    def _weight(self, block: Block, ins: int, split: Split | None) -> Tensor:
        """As it is stored, memory-mapped."""
        whole = self._checkpoint.read(f"{block.name}.weight", (block.total or block.rows, ins))
        rows = whole.narrow(0, block.first, block.rows)
        return rows if split is None else self._share(rows, 0 if split == "outputs" else 1, block.name)

    def _bias(self, block: Block, split: Split | None) -> Tensor:
        whole = self._checkpoint.read(f"{block.name}.bias", (block.total or block.rows,))
        rows = whole.narrow(0, block.first, block.rows).to(self.device, self.dtype)
        return self._share(rows, 0, block.name) if split == "outputs" else rows

    def _share(self, tensor: Tensor, dim: int, name: str) -> Tensor:
        count = share(self.ranks, tensor.shape[dim], f"features of {name}")
        return tensor.narrow(dim, self.ranks.rank * count, count)
