"""Measures the rates at which the machine reads memory and multiplies matrices, in a process of its own.

These are bounds for a model: a decode step reads all weights once; a long prompt is mostly matrix products.
"""

from __future__ import annotations

import asyncio

import torch

from pie_inference.cpu_kernels.library import find_library
from pie_inference.inspection.rates import GEMM_SIZE, READ_BYTES, SECONDS, Rates, measure_rates
from pie_inference.options import default_cache_dir

from .limited import faster_dtype, limited_process

CPU = torch.device("cpu")
BLOCK = 512
"""Bytes that are read at a time."""


async def measure_apart(threads: int, read_bytes: int, gemm_size: int = GEMM_SIZE, max_isa: str = "auto") -> Rates:
    """Like `measure`, in a separate process, which leaves no threads or settings behind and keeps to `max_isa`."""
    arguments = threads, read_bytes, gemm_size, max_isa
    with limited_process(max_isa) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, measure, *arguments)


def measure(threads: int, read_bytes: int, gemm_size: int = GEMM_SIZE, max_isa: str = "auto") -> Rates:
    """Measures both rates of `threads` threads, products in `faster_dtype`. It sets torch's threads, so run it in a
    separate process. A plan that reads less than usual also takes less time."""
    torch.set_num_threads(threads)
    library = find_library("auto", default_cache_dir(), CPU, max_isa)
    whole = read_bytes // BLOCK * BLOCK
    budget = SECONDS * min(1.0, read_bytes / READ_BYTES)
    return measure_rates(CPU, faster_dtype(), library, whole, gemm_size, budget)
