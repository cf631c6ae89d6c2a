"""Finds broken scales before memory is taken."""

from __future__ import annotations

import torch

from ...errors import CheckpointError
from ..checkpoint import Checkpoint, StoredTensor

PLAIN = ("F8_E4M3", "I8")
"""Number formats of weights that need scales."""


def check_scales(checkpoint: Checkpoint) -> None:
    """Reads all scales of quantized modules, and no weight. Raises CheckpointError for a module without scales, and for
    scales that are 0 or not numbers."""
    if checkpoint.scheme is None:
        return
    last = checkpoint.scheme.scale
    for tensor in checkpoint.tensors():
        module, _, ending = tensor.name.rpartition(".")
        if ending == last:
            _check(checkpoint, tensor)
        elif _is_weight(tensor) and f"{module}.{last}" not in checkpoint:
            raise CheckpointError(
                f"{tensor.path}: tensor {tensor.name!r} is quantized, and {last} of {module} is missing"
            )


def _is_weight(tensor: StoredTensor) -> bool:
    return tensor.format in PLAIN if tensor.per_number is None else tensor.per_number > 0


def _check(checkpoint: Checkpoint, tensor: StoredTensor) -> None:
    scales = checkpoint.read(tensor.name, tensor.shape)
    if not bool((torch.isfinite(scales) & (scales != 0)).all()):
        raise CheckpointError(f"{tensor.path}: tensor {tensor.name!r}: a scale is 0 or not a number")
