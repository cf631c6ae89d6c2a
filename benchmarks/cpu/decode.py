"""How near does decoding a model of a billion parameters come to what the machine can do?

`random-1b` has the shape of Llama-3.2-1B, with random weights, in bfloat16 or quantized. The whole system runs it:
inferlets stream to a client. The bound follows from the machine's rates, which are measured beside each run. Each round
has prompts that begin differently, as the server computes the common beginning of prompts only once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pie_inference.inspection.rates import GEMM_SIZE

from ..support.generation import Generated
from ..support.models.large_model import LargeModel, ServedModel, served
from ..support.models.random_models import LLAMA_1B, LLAMA_TINY
from ..support.samples import median


@dataclass(frozen=True, kw_only=True)
class Plan(ServedModel):
    """`tokens` tokens are generated behind prompts of `prompt` tokens; one inferlet alone generates `single_tokens`, in
    `rounds` rounds. The machine's rates are those of passes over `read_bytes` bytes of memory, and of products of
    matrices with `gemm_size` rows and columns. `pages`, `kernels`, `quantization` and `max_isa` are options of the
    server. `tree`: the tree to serve from, if not this one."""

    concurrent: tuple[int, ...]
    prompt: int
    tokens: int
    single_tokens: int
    rounds: int
    read_bytes: int
    gemm_size: int = GEMM_SIZE


FULL = Plan(
    model=LLAMA_1B,
    pages=2048,
    concurrent=(1, 16, 32),
    prompt=128,
    tokens=64,
    single_tokens=128,
    rounds=2,
    read_bytes=1 << 30,
)
QUICK = Plan(
    model=LLAMA_TINY,
    pages=256,
    concurrent=(1, 4),
    prompt=32,
    tokens=8,
    single_tokens=8,
    rounds=1,
    read_bytes=1 << 26,
)


@dataclass(frozen=True)
class Row:
    """`ms`: time of a token, end to end, or of a wave by the worker's own count. `bound_ms`: time to read all weights
    and the keys and values of all sequences once, or to do all multiplications,
    whichever takes longer. `batch`: average number of sequences in a wave."""

    measure: str
    concurrent: int
    ms: float
    bound_ms: float
    of_bound: float
    batch: float


async def run(plan: Plan) -> list[Row]:
    """Returns two rows for each number of inferlets."""
    async with served(plan) as model:
        return [row for count in plan.concurrent for row in await _measure(model, plan, count)]


async def _measure(model: LargeModel, plan: Plan, count: int) -> list[Row]:
    tokens = plan.tokens if count > 1 else plan.single_tokens
    await model.warm_up(count)
    rounds = plan.rounds if count == 1 else 1  # prompts take most of the time
    runs = [
        (
            await model.generate(model.new_prompts(count, plan.prompt), tokens),
            await model.rates_now(plan.read_bytes, plan.gemm_size),
        )
        for _ in range(rounds)
    ]
    context = plan.prompt + tokens / 2
    costs = (model.costs.step_bytes(count, context), model.costs.step_operations(count, context))
    bounds = [1e3 * rates.seconds(*costs) for _, rates in runs]
    batch = round(median([run.waves.batch for run, _ in runs]), 1)

    def row(measure: str, time: Callable[[Generated], float]) -> Row:
        ours = [time(run) for run, _ in runs]
        share = median([bound / one for bound, one in zip(bounds, ours, strict=True)])
        return Row(measure, count, round(median(ours), 3), round(median(bounds), 3), round(share, 3), batch)

    return [
        row("token, end to end", lambda run: run.per_token),
        row("wave, in the worker", lambda run: run.waves.worker),
    ]
