"""How fast does this machine read memory and multiply bfloat16 matrices, which bounds a model on its CPU?"""

from __future__ import annotations

from dataclasses import dataclass

from pie_inference.device.threads import default_threads

from ..support import rooflines


@dataclass(frozen=True)
class Plan:
    """Memory is read in passes over `read_bytes` bytes; matrices have `gemm_size` rows and columns. `threads`: 0 for
    the number that a worker would use for a large model."""

    read_bytes: int
    gemm_size: int = rooflines.GEMM_SIZE
    threads: int = 0


FULL = Plan(1 << 30)
QUICK = Plan(1 << 26)
LARGE = 1 << 30


@dataclass(frozen=True)
class Row:
    threads: int
    read_gb_s: float
    gemm_gflop_s: float


async def run(plan: Plan) -> list[Row]:
    rates = await rooflines.measure_apart(plan.threads or default_threads(LARGE), plan.read_bytes, plan.gemm_size)
    return [Row(rates.threads, round(rates.read / 1e9, 2), round(rates.gemm / 1e9, 1))]
