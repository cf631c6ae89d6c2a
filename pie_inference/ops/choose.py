"""Chooses the `Ops` for a device."""

from __future__ import annotations

import logging

import torch

from ..cpu_kernels.library import Library
from ..cpu_kernels.ways import Way
from ..device import triton_support
from .cpu_ops import CpuOps
from .interface import Ops
from .torch_ops import TorchOps

log = logging.getLogger("pie.ops")


def choose_ops(name: str, device: torch.device, dtype: torch.dtype, library: Library | None, way: Way = "own") -> Ops:
    """The fastest `Ops` available here. `name` is one of `WorkerOptions.kernels`; `library` has the compiled kernels
    for CPUs, if there are any; `way` is that of linear layers there."""
    plain = TorchOps(device, dtype)
    if library is not None:
        return CpuOps(library, dtype, plain.linear if way == "torch" else None)
    is_plain = name == "torch" or device.type != "cuda" or dtype == torch.float64
    return plain if is_plain else _cuda_ops(device, dtype, plain)


def _cuda_ops(device: torch.device, dtype: torch.dtype, plain: Ops) -> Ops:
    """FlashInfer's operations if it can be used, the rest by Triton, and matrix products by `plain`."""
    from ..device import flashinfer_library
    from .flashinfer_ops import FlashInferOps

    others = plain if triton_support.why_unavailable(device) is not None else _triton_ops(plain)
    if dtype not in flashinfer_library.DTYPES or flashinfer_library.why_unavailable(device) is not None:
        return others
    ops = FlashInferOps(flashinfer_library.load(), others)
    try:
        with flashinfer_library.telling_time("FlashInfer's kernels of operations"):
            ops.compile(device, dtype)
    except Exception as error:  # of compilers, files and drivers, of which each has its own
        log.warning("FlashInfer's kernels for operations cannot be compiled, others run: %s", error)
        return others
    return ops


def _triton_ops(plain: Ops) -> Ops:
    from .triton_ops import TritonOps

    return TritonOps(plain)
