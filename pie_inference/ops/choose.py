"""Chooses the `Ops` for a device."""

from __future__ import annotations

import torch

from ..cpu_kernels.library import Library
from ..cpu_kernels.ways import Way
from ..device import triton_support
from .cpu_ops import CpuOps
from .interface import Ops
from .torch_ops import TorchOps


def choose_ops(name: str, device: torch.device, dtype: torch.dtype, library: Library | None, way: Way = "own") -> Ops:
    """The fastest `Ops` available here. `name` is one of `WorkerOptions.kernels`; `library` has the compiled kernels
    for CPUs, if there are any; `way` is that of linear layers there."""
    plain = TorchOps(device, dtype)
    if library is not None:
        return CpuOps(library, dtype, plain.linear if way == "torch" else None)
    is_plain = name == "torch" or device.type != "cuda" or dtype == torch.float64
    if is_plain or triton_support.why_unavailable(device) is not None:
        return plain
    from .triton_ops import TritonOps

    return TritonOps(plain)
