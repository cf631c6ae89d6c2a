"""Measures the rates at which the machine reads memory and multiplies bfloat16 matrices.

These are bounds for a model: a decode step reads all weights once; a long prompt is mostly matrix products.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import multiprocessing
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

SOURCE = Path(__file__).parent / "read_memory.c"
GEMM_SIZE = 2048
REPEATS = 10  # the best of them counts


@dataclass(frozen=True)
class Rates:
    """Rates of `threads` threads together."""

    threads: int
    read: float  # bytes per second
    gemm: float  # bfloat16 operations per second; a multiplication and an addition are two

    def seconds(self, num_bytes: float, operations: float) -> float:
        """The least time to read `num_bytes` and to do `operations`."""
        return max(num_bytes / self.read, operations / self.gemm)


async def measure_apart(threads: int, read_bytes: int, gemm_size: int = GEMM_SIZE) -> Rates:
    """Like `measure`, in a separate process, which leaves no threads or settings behind."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, measure, threads, read_bytes, REPEATS, gemm_size)


def measure(threads: int, read_bytes: int, repeats: int, gemm_size: int = GEMM_SIZE) -> Rates:
    """Measures both rates, the best of `repeats`. It sets torch's threads, so run it in a separate process. Raises
    RuntimeError without a C compiler."""
    torch.set_num_threads(threads)
    return Rates(threads, _read_rate(threads, read_bytes, repeats), _gemm_rate(repeats, gemm_size))


def _read_rate(threads: int, num_bytes: int, repeats: int) -> float:
    read = _compile()
    part = num_bytes // threads // mmap.PAGESIZE * mmap.PAGESIZE
    memory = _pages(part * threads)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with ThreadPoolExecutor(threads) as pool:

        def run() -> None:
            list(pool.map(lambda thread: read(start + part * thread, part), range(threads)))

        return part * threads / _best(run, repeats)


def _pages(num_bytes: int) -> mmap.mmap:
    """Memory in huge pages if the system has them. It is written once, because unwritten memory is one page of
    zeros."""
    memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    memory.write(bytes(num_bytes))
    return memory


def _compile() -> Callable[[int, int], int]:
    """Compiles and loads `read_memory`; ctypes releases the interpreter lock while it runs."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "read_memory.so"
        command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise RuntimeError("measuring memory needs a C compiler named cc; install gcc or clang") from None
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{' '.join(command)} failed: {error.stderr}") from None
        read = ctypes.CDLL(str(library)).read_memory
    read.argtypes, read.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint64
    function: Callable[[int, int], int] = read
    return function


def _gemm_rate(repeats: int, size: int) -> float:
    left, right = (torch.randn(size, size).bfloat16() for _ in range(2))
    return 2 * size**3 / _best(lambda: torch.mm(left, right), 4 * repeats)


def _best(action: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of `repeats` runs, after one that does not count."""
    action()
    return min(_time(action) for _ in range(repeats))


def _time(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
