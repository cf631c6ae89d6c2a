"""Which `Ops` serves which device."""

from __future__ import annotations

import torch

from ..cpu_kernels.library import Library
from .cpu_ops import CpuOps
from .interface import Ops
from .torch_ops import TorchOps


def choose_ops(device: torch.device, dtype: torch.dtype, library: Library | None) -> Ops:
    """The fastest that is available here. `library`: the compiled kernels for CPUs, if there are any."""
    if library is not None:
        return CpuOps(library, dtype)
    return TorchOps(device, dtype)
