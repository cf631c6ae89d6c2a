"""Processes that leave instruction sets unused as a worker with `--max-isa` does, and how they multiply fastest."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import torch

from pie_inference.options.isa import limit_isa

TRIAL_SIZE = 512


def limited_process(max_isa: str) -> ProcessPoolExecutor:
    """A pool of one new process, whose torch keeps to `max_isa`."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=limit_isa, initargs=(max_isa,))


def faster_dtype() -> torch.dtype:
    """bfloat16, or float32 where torch multiplies its matrices at least twice as fast, as it does without instructions
    for bfloat16."""
    return torch.float32 if _product_seconds(torch.bfloat16) > 2 * _product_seconds(torch.float32) else torch.bfloat16


def _product_seconds(dtype: torch.dtype) -> float:
    """Seconds of the fastest of three products, after one that does not count."""
    left, right = (torch.randn(TRIAL_SIZE, TRIAL_SIZE).to(dtype) for _ in range(2))
    times = []
    for _ in range(4):
        start = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - start)
    return min(times[1:])
