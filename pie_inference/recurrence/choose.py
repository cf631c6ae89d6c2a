"""Chooses the `Recurrences` for a device."""

from __future__ import annotations

import torch

from ..cpu_kernels.library import Library
from ..device import triton_support
from .cpu_recurrences import CpuRecurrences
from .interface import Recurrences
from .torch_recurrences import TorchRecurrences


def choose_recurrences(name: str, device: torch.device, dtype: torch.dtype, library: Library | None) -> Recurrences:
    """The fastest `Recurrences` available here. Arguments as in `ops.choose.choose_ops`."""
    if library is not None:
        return CpuRecurrences(library, dtype)
    is_plain = name == "torch" or device.type != "cuda" or dtype == torch.float64
    if is_plain or triton_support.why_unavailable(device) is not None:
        return TorchRecurrences()
    from .triton_recurrences import TritonRecurrences

    return TritonRecurrences()
