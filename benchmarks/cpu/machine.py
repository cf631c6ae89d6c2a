"""How fast does this machine read memory and multiply matrices, which bounds a model on its CPU?

As `pie bench-model` measures it: the best pass over memory by a worker's compiled kernel, or by torch without a
compiler, more slowly; and a product in bfloat16, or in float32 where torch is faster in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pie_inference.device.threads import default_threads
from pie_inference.inspection.rates import GEMM_SIZE
from pie_inference.options import WorkerOptions

from ..support.rooflines import measure_apart


@dataclass(frozen=True)
class Plan:
    """Memory is read in passes over `read_bytes` bytes; matrices have `gemm_size` rows and columns. `threads`: 0 for
    the number that a worker would use for a large model. `max_isa` is a worker's option."""

    read_bytes: int
    gemm_size: int = GEMM_SIZE
    threads: int = 0
    max_isa: str = "auto"

    def __post_init__(self) -> None:
        WorkerOptions(max_isa=self.max_isa)


FULL = Plan(1 << 30)
QUICK = Plan(1 << 26)
LARGE = 1 << 30


@dataclass(frozen=True)
class Row:
    threads: int
    read_gb_s: float
    gemm_gflop_s: float


async def run(plan: Plan) -> list[Row]:
    threads = plan.threads or default_threads(LARGE)
    rates = await measure_apart(threads, plan.read_bytes, plan.gemm_size, plan.max_isa)
    return [Row(threads, round(rates.read_bytes / 1e9, 2), round(rates.gemm_operations / 1e9, 1))]
