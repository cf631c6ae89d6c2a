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
SMALL_GEMM_SIZE = 256  # where a product of the whole size would take too long
SECONDS = 1.5  # time to measure each rate


@dataclass(frozen=True)
class Rates:
    """Rates of torch's threads together, or of the GPU."""

    read_bytes: float  # per second
    gemm_operations: float  # per second; a multiplication and an addition are two

    def seconds(self, num_bytes: float, operations: float) -> float:
        """The least time to read `num_bytes` and to do `operations`."""
        return max(num_bytes / self.read_bytes, operations / self.gemm_operations)


def measure_rates(
    device: torch.device,
    dtype: torch.dtype,
    library: Library | None,
    read_bytes: int = READ_BYTES,
    gemm_size: int = GEMM_SIZE,
    budget: float = SECONDS,
) -> Rates:
    """Measures both rates, each for `budget` seconds, by reading `read_bytes` bytes (a multiple of 512) again and again
    and by products of matrices with `gemm_size` rows and columns, or of small ones if such a product takes longer than
    the budget: some machines have no instructions for bfloat16. `library`: the compiled kernels for CPUs; without
    them torch reads the memory, more slowly than the machine could."""
    return Rates(_read_rate(device, library, read_bytes, budget), _gemm_rate(device, dtype, gemm_size, budget))


def _read_rate(device: torch.device, library: Library | None, num_bytes: int, budget: float) -> float:
    if device.type == "cuda":
        numbers = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        copy = torch.empty_like(numbers)
        return 2 * num_bytes / best_seconds(lambda: copy.copy_(numbers), device, budget)
    memory = torch.from_numpy(lazy_zero_bytes(num_bytes)).view(torch.int64).fill_(1)
    if library is None:
        return num_bytes / best_seconds(memory.sum, device, budget)
    threads = torch.get_num_threads()
    sums = torch.zeros(threads, dtype=torch.int64)
    read = library.kernel("read_memory", ADDRESS, INTEGER, ADDRESS, INTEGER)
    seconds = best_seconds(lambda: read(memory.data_ptr(), num_bytes, sums.data_ptr(), threads), device, budget)
    return num_bytes / seconds


def _gemm_rate(device: torch.device, dtype: torch.dtype, size: int, budget: float) -> float:
    small = min(size, SMALL_GEMM_SIZE)
    rate = _rate_of_products(device, dtype, small, 0.0)
    return _rate_of_products(device, dtype, size if 2 * size**3 / rate < budget else small, budget)


def _rate_of_products(device: torch.device, dtype: torch.dtype, size: int, budget: float) -> float:
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / best_seconds(lambda: torch.mm(left, right), device, budget)


def best_seconds(action: Callable[[], object], device: torch.device, budget: float) -> float:
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
