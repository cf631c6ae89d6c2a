"""Finds missing tensors, and those of other shapes, before memory is taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..device.ranks import Ranks
from ..loading.checkpoint import Checkpoint
from ..loading.quantized.layers import QuantizedTensors
from ..loading.weights import WeightLoader
from ..models.borrowed.config import BorrowedConfig
from ..models.config import ModelConfig
from ..models.registry import build_model
from ..ops.interface import Linear
from ..ops.torch_ops import TorchOps

CPU = torch.device("cpu")


def check_tensors(model: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype, ranks: Ranks) -> None:
    """Builds a model of a family of Pie's own of the headers of its tensors alone. Models by transformers' code check
    theirs before they read one, or here by `check_borrowed_tensors`. Raises CheckpointError."""
    if not isinstance(model, BorrowedConfig):
        build_model(model, WeightLoader(_Headers(checkpoint, dtype), _NoProducts(CPU, dtype), dtype, CPU, ranks))


def check_borrowed_tensors(model: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    """Checks the tensors of a model by transformers' code, which is imported for it; a start imports it anyway, later.
    Raises CheckpointError."""
    if isinstance(model, BorrowedConfig):
        from ..models.borrowed.model import check_tensors as check

        scheme = checkpoint.scheme
        check(model, checkpoint, None if scheme is None else QuantizedTensors(scheme, checkpoint, None), dtype)


class _NoProducts(TorchOps):
    """Operations of a model that never runs: a weight is not copied."""

    def linear(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        return lambda rows: rows


class _Headers:
    """Implements `TensorSource`: tensors without numbers. Weights that are quantized in the checkpoint have the shape
    that is asked for."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint or self._is_quantized(name)

    def names(self) -> Iterable[str]:
        """The names of all tensors."""
        return self._checkpoint.names()

    def shape(self, name: str) -> Sequence[int]:
        """The shape of a tensor. Raises CheckpointError if it is missing."""
        return self._checkpoint.shape(name)

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Raises CheckpointError if the tensor is missing or has another shape."""
        if not self._is_quantized(name):
            self._checkpoint.check(name, shape)

    def differ(self, one: str, other: str) -> bool:
        """True, so that both are checked; numbers are not read."""
        return True

    def read(self, name: str, shape: Sequence[int]) -> Tensor:
        """A tensor that takes no memory. Raises CheckpointError."""
        self.check(name, shape)
        return _without_memory(shape, self._dtype)

    def _is_quantized(self, name: str) -> bool:
        scheme = self._checkpoint.scheme
        return scheme is not None and scheme.holds(self._checkpoint, name.removesuffix(".weight"))


def _without_memory(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """One number in each place. The device `meta` would do the same, but its operations import torch's compiler, which
    takes two seconds."""
    return torch.zeros(1, dtype=dtype).expand(tuple(shape))
