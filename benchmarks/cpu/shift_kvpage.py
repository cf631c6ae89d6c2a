"""How much faster are tokens moved than computed anew, and a prompt joined than filled?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..support.guests import source
from ..support.models.large_model import ServedModel, served
from ..support.models.random_models import LLAMA_1B, LLAMA_TINY
from ..support.samples import median


@dataclass(frozen=True, kw_only=True)
class Plan(ServedModel):
    """A prompt of `tokens` in each of `rounds` rounds, which is computed and moved; and its `parts`, which are joined
    in another order."""

    tokens: int
    parts: int
    rounds: int


FULL = Plan(model=LLAMA_1B, tokens=256, parts=8, rounds=5, pages=1024)
QUICK = Plan(model=LLAMA_TINY, tokens=128, parts=8, rounds=1, pages=256)


@dataclass(frozen=True)
class Row:
    """Medians, as the program sees them; `of_computing`: `ms` over `computing_ms`."""

    measure: str
    tokens: int
    ms: float
    computing_ms: float
    of_computing: float


async def run(plan: Plan) -> list[Row]:
    """Returns a row for the move, and one for the first token behind joined parts."""
    rounds: list[Sequence[float]] = []
    async with served(plan) as model:
        await model.warm_up(1)
        program = await model.client.upload(source("moving"), "moving")
        for prompt in model.new_prompts(plan.rounds, plan.tokens):
            rounds.append(await model.client.run(program, prompt=prompt, parts=plan.parts))
    computed, moved, joined, filled = (1000 * median(list(seconds)) for seconds in zip(*rounds, strict=True))

    def row(measure: str, ms: float, computing_ms: float) -> Row:
        return Row(measure, plan.tokens, round(ms, 3), round(computing_ms, 3), round(ms / computing_ms, 4))

    return [
        row("moved", moved, computed),
        row(f"first token behind {plan.parts} parts, joined", joined, filled),
    ]
