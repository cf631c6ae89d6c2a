"""How near does a long prompt of a model of a billion parameters come to what the machine can do?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..support.generation import Generated
from ..support.models.large_model import WARM_UP_TOKENS, random_prompts, served
from ..support.models.random_models import LLAMA_1B, LLAMA_TINY
from ..support.rooflines import GEMM_SIZE
from ..support.samples import median


@dataclass(frozen=True)
class Plan:
    """One prompt of `prompt` tokens, `rounds` times. The other options are as in `machine`. `tree`: the tree to serve
    from, if not this one."""

    model: str
    prompt: int
    rounds: int
    read_bytes: int
    pages: int
    gemm_size: int = GEMM_SIZE
    tree: Path | None = None


FULL = Plan(LLAMA_1B, prompt=2048, rounds=2, read_bytes=1 << 30, pages=2048)
QUICK = Plan(LLAMA_TINY, prompt=256, rounds=1, read_bytes=1 << 26, pages=256)


@dataclass(frozen=True)
class Row:
    """Operations of the linear layers and of causal attention per second; `gemm_gflop_s`: the machine's rate, as in
    `machine`."""

    measure: str
    tokens: int
    ms: float
    gflop_s: float
    gemm_gflop_s: float
    of_gemm: float


async def run(plan: Plan) -> list[Row]:
    """Returns two rows: end to end, and by the worker's own count."""
    prompts = random_prompts(1, plan.prompt)
    async with served(plan.model, plan.pages, plan.tree) as model:
        await model.warm_up(prompts)
        runs = [
            (await model.generate(prompts, WARM_UP_TOKENS), await model.rates_now(plan.read_bytes, plan.gemm_size))
            for _ in range(plan.rounds)
        ]
    operations = model.costs.prefill_operations(plan.prompt)
    gemm = median([rates.gemm for _, rates in runs]) / 1e9

    def row(measure: str, time: Callable[[Generated], float]) -> Row:
        ms = median([time(run) for run, _ in runs])
        rate = operations / ms / 1e6
        return Row(measure, plan.prompt, round(ms, 3), round(rate, 1), round(gemm, 1), round(rate / gemm, 3))

    return [
        row("end to end", lambda run: run.prompts),
        row("in the worker", lambda run: run.prompt_waves.worker_total),
    ]
