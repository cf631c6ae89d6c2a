"""Measures how fast the machine reads memory and multiplies matrices."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..cpu_kernels.library import ADDRESS, INTEGER, Library
from ..device.host_memory import lazy_zero_bytes

READ_BYTES = 1 << 30
GEMM_SIZE = 2048
SECONDS = 1.5  # time to measure each rate


@dataclass(frozen=True)
class Rates:
    """Rates of torch's threads together, or of the GPU."""

    read_bytes: float  # per second
    gemm_operations: float  # per second; a multiplication and an addition are two


def measure_rates(device: torch.device, dtype: torch.dtype, library: Library | None) -> Rates:
    """Measures both rates. `library`: the compiled kernels for CPUs; without them torch reads the memory, more slowly
    than the machine could."""
    return Rates(_read_rate(device, library), _gemm_rate(device, dtype))


def _read_rate(device: torch.device, library: Library | None) -> float:
    if device.type == "cuda":
        numbers = torch.zeros(READ_BYTES, dtype=torch.uint8, device=device)
        copy = torch.empty_like(numbers)
        return 2 * READ_BYTES / best_seconds(lambda: copy.copy_(numbers), device)
    memory = torch.from_numpy(lazy_zero_bytes(READ_BYTES)).view(torch.int64).fill_(1)
    if library is None:
        return READ_BYTES / best_seconds(memory.sum, device)
    threads = torch.get_num_threads()
    sums = torch.zeros(threads, dtype=torch.int64)
    read = library.kernel("read_memory", ADDRESS, INTEGER, ADDRESS, INTEGER)
    seconds = best_seconds(lambda: read(memory.data_ptr(), READ_BYTES, sums.data_ptr(), threads), device)
    return READ_BYTES / seconds


def _gemm_rate(device: torch.device, dtype: torch.dtype) -> float:
    left, right = (torch.randn(GEMM_SIZE, GEMM_SIZE, device=device).to(dtype) for _ in range(2))
    return 2 * GEMM_SIZE**3 / best_seconds(lambda: torch.mm(left, right), device)


def best_seconds(action: Callable[[], object], device: torch.device, budget: float = SECONDS) -> float:
    """Seconds of the fastest run of `action`, among the runs within `budget` seconds, after one that does not count."""
    _timed(action, device)
    best, deadline = float("inf"), time.perf_counter() + budget
    while time.perf_counter() < deadline or best == float("inf"):
        best = min(best, _timed(action, device))
    return best


def _timed(action: Callable[[], object], device: torch.device) -> float:
    started = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
