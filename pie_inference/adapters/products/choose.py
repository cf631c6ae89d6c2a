"""Chooses the `Products` for a device."""

from __future__ import annotations

import torch

from ...cpu_kernels.library import Library
from ...device import triton_support
from .interface import Products
from .torch_products import TorchProducts


def choose_products(name: str, device: torch.device, dtype: torch.dtype, library: Library | None) -> Products:
    """The fastest ones available here. `name` is one of `WorkerOptions.kernels`; `library` has the compiled kernels for
    CPUs, if there are any; `dtype` is that of the model."""
    if library is not None:
        from .cpu_products import CpuProducts

        return CpuProducts(library, dtype)
    is_plain = name == "torch" or device.type != "cuda" or dtype == torch.float64
    if is_plain or triton_support.why_unavailable(device) is not None:
        return TorchProducts()
    from .triton_products import TritonProducts

    return TritonProducts(dtype)
