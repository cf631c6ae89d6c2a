"""Finds broken scales before memory is taken."""

from __future__ import annotations

import torch

from ...errors import CheckpointError
from ..checkpoint import FLOATING, Checkpoint, StoredTensor
from .scheme import TAKE_THE_ORIGINAL
from .schemes.fp4 import MX_SCALES

PLAIN = ("F8_E4M3", "I8", "U8")
"""Number formats of weights that need scales."""
WEIGHT = ".weight"
SCALES = (".weight_scale", ".weight_scale_inv", ".scale_weight")
"""What scales of float8 weights are called."""


def check_scales(checkpoint: Checkpoint) -> None:
    """Reads all scales of quantized modules, and no weight. Raises CheckpointError for a module without scales, for
    scales that are 0 or not numbers, and for those of no scheme."""
    scheme = checkpoint.scheme
    _refuse_stacks(checkpoint)
    if scheme is None:
        _refuse_forgotten(checkpoint)
        return
    for tensor in checkpoint.tensors():
        if tensor.name.endswith(tuple(scheme.scales)):
            _check(checkpoint, tensor)
        elif _is_weight(tensor):
            module = _module(tensor.name, [*scheme.endings, WEIGHT])
            for scale in scheme.scales:
                if module + scale not in checkpoint:
                    raise CheckpointError(
                        f"{tensor.path}: tensor {tensor.name!r} is quantized, and {scale[1:]} of {module} is missing"
                    )


def _refuse_stacks(checkpoint: Checkpoint) -> None:
    """Raises CheckpointError for the experts of a layer in one float8 tensor, whose scales no scheme reads."""
    for tensor in checkpoint.tensors():
        stacks = tensor.format == "F8_E4M3" and not tensor.name.endswith(WEIGHT)
        if stacks and any(tensor.name + ending in checkpoint for ending in ("_scale_inv", "_scale")):
            raise CheckpointError(
                f"{tensor.path}: tensor {tensor.name!r} has the experts of a layer in float8, which is supported only "
                f"where each has tensors of its own; {TAKE_THE_ORIGINAL}"
            )


def _refuse_forgotten(checkpoint: Checkpoint) -> None:
    """Raises CheckpointError for float8 numbers with scales of which config.json says nothing: as plain numbers they
    would be another model."""
    for tensor in checkpoint.tensors():
        if tensor.format == "F8_E4M3" and tensor.name.endswith(WEIGHT):
            for scale in (f"{tensor.name.removesuffix(WEIGHT)}{ending}" for ending in SCALES):
                if scale in checkpoint:
                    raise CheckpointError(
                        f"{tensor.path}: tensor {tensor.name!r} is quantized, by {scale!r}, and config.json has no "
                        "quantization_config: put it back there, or take the original checkpoint"
                    )


def _is_weight(tensor: StoredTensor) -> bool:
    if tensor.per_number is None:
        return tensor.format in PLAIN and tensor.name.endswith(WEIGHT)
    return tensor.per_number > 0


def _module(name: str, endings: list[str]) -> str:
    return next(name.removesuffix(ending) for ending in endings if name.endswith(ending))


def _check(checkpoint: Checkpoint, tensor: StoredTensor) -> None:
    stored = checkpoint.read(tensor.name, tensor.shape, (*FLOATING, *MX_SCALES))
    scales = (stored.view(torch.float8_e8m0fnu) if stored.dtype == torch.uint8 else stored).float()
    if not bool((torch.isfinite(scales) & (scales != 0)).all()):
        raise CheckpointError(f"{tensor.path}: tensor {tensor.name!r}: a scale is 0 or not a number")
