"""Reads the folder of a Hugging Face checkpoint: config.json and memory-mapped safetensors, whole or in shards."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import CheckpointError

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


class WeightLoader:
    """Hands a checkpoint's tensors to layers in the dtype and on the device in which they serve."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self.bytes_loaded = 0
        self._checkpoint = checkpoint

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One tensor; raises CheckpointError."""
        tensor = self._checkpoint.read(name, shape).to(self.device, self.dtype)
        self.bytes_loaded += tensor.nbytes
        return tensor

    def stack(self, names: Sequence[str], shapes: Sequence[Sequence[int]]) -> Tensor:
        """Several tensors, one behind the other along their first dimension."""
        tensors = [self.tensor(name, *shape) for name, shape in zip(names, shapes, strict=True)]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
