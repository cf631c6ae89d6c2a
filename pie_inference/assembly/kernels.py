"""Chooses the fastest kernels that are available here. `name` is one of `WorkerOptions.kernels`, `dtype` that of the
model; `library` has the compiled kernels for CPUs, if there are any."""

from __future__ import annotations

import torch

from ..adapters.products.cpu_products import CpuProducts
from ..adapters.products.interface import Products
from ..adapters.products.torch_products import TorchProducts
from ..cpu_kernels.library import Library
from ..cpu_kernels.ways import Way
from ..device import triton_support
from ..ops.cpu_ops import CpuOps
from ..ops.interface import Ops
from ..ops.torch_ops import TorchOps
from ..recurrence.cpu_recurrences import CpuRecurrences
from ..recurrence.interface import Recurrences
from ..recurrence.torch_recurrences import TorchRecurrences


def choose_ops(name: str, device: torch.device, dtype: torch.dtype, library: Library | None, way: Way = "own") -> Ops:
    """`way` is that of linear layers on CPUs."""
    plain = TorchOps(device, dtype)
    if library is not None:
        return CpuOps(library, dtype, plain.linear if way == "torch" else None)
    if not _triton_serves(name, device, dtype):
        return plain
    from ..ops.triton_ops import TritonOps

    return TritonOps(plain)


def choose_products(name: str, device: torch.device, dtype: torch.dtype, library: Library | None) -> Products:
    """Those of adapters."""
    if library is not None:
        return CpuProducts(library, dtype)
    if not _triton_serves(name, device, dtype):
        return TorchProducts()
    from ..adapters.products.triton_products import TritonProducts

    return TritonProducts(dtype)


def choose_recurrences(name: str, device: torch.device, dtype: torch.dtype, library: Library | None) -> Recurrences:
    """Those of layers that keep a state."""
    if library is not None:
        return CpuRecurrences(library, dtype)
    if not _triton_serves(name, device, dtype):
        return TorchRecurrences()
    from ..recurrence.triton_recurrences import TritonRecurrences

    return TritonRecurrences()


def _triton_serves(name: str, device: torch.device, dtype: torch.dtype) -> bool:
    is_plain = name == "torch" or device.type != "cuda" or dtype == torch.float64
    return not is_plain and triton_support.why_unavailable(device) is None
