"""How near does a long prompt of a model of a billion parameters come to what the machine can do?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pie_inference.inspection.rates import GEMM_SIZE

from ..support.generation import Generated
from ..support.models.large_model import WARM_UP_TOKENS, LargeModel, ServedModel, served
from ..support.models.random_models import LLAMA_1B, LLAMA_TINY
from ..support.samples import median


@dataclass(frozen=True, kw_only=True)
class Plan(ServedModel):
    """One prompt of `prompt` tokens, another in each of `rounds` rounds. The other options are as in `decode`."""

    prompt: int
    rounds: int
    read_bytes: int
    gemm_size: int = GEMM_SIZE


FULL = Plan(model=LLAMA_1B, prompt=2048, rounds=2, read_bytes=1 << 30, pages=2048)
QUICK = Plan(model=LLAMA_TINY, prompt=256, rounds=1, read_bytes=1 << 26, pages=256)


@dataclass(frozen=True)
class Row:
    """Operations of the linear layers and of causal attention per second; `gemm_gflop_s`: the machine's rate, as in
    `decode`."""

    measure: str
    tokens: int
    ms: float
    gflop_s: float
    gemm_gflop_s: float
    of_gemm: float


async def run(plan: Plan) -> list[Row]:
    """Returns two rows: end to end, and by the worker's own count."""
    async with served(plan) as model:
        await model.warm_up(1)
        runs = [
            (await _read(model, plan.prompt), await model.rates_now(plan.read_bytes, plan.gemm_size))
            for _ in range(plan.rounds)
        ]
    operations = model.costs.prefill_operations(plan.prompt)
    gemm = median([rates.gemm_operations for _, rates in runs]) / 1e9

    def row(measure: str, time: Callable[[Generated], float]) -> Row:
        ms = median([time(run) for run, _ in runs])
        rate = operations / ms / 1e6
        return Row(measure, plan.prompt, round(ms, 3), round(rate, 1), round(gemm, 1), round(rate / gemm, 3))

    return [
        row("end to end", lambda run: run.prompts),
        row("in the worker", lambda run: run.prompt_waves.worker_total),
    ]


async def _read(model: LargeModel, tokens: int) -> Generated:
    return await model.generate(model.new_prompts(1, tokens), WARM_UP_TOKENS)
