"""Two models that debate are right more often than one answer of theirs; beside them, each in debate with itself."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.arithmetic import held_out_problems
from pie_control.client import Client

PAPER_LINES = 0  # the paper has none
MODELS = ["demo", "demo-reasoner"]
LEAST = 8
AT_ONCE = 4


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    debating = await client.upload(program("debate"), "")
    sums = [problem for problem in held_out_problems() if problem.operator == "+"]
    drawn = draw.sample(sums, problems)

    async def debate(*models: str) -> tuple[float, list[float], float]:
        """Right answers, those of each model's first answer, and tokens of each."""

        async def ask(number: int) -> dict[str, Any]:
            options: Any = {"question": f"What is {drawn[number]}?", "seed": 1000 * (seed + number)}
            async with limit:
                return dict(await client.run(debating, models=list(models), **options))

        found = await asyncio.gather(*map(ask, range(problems)))
        expected = [str(problem.result) for problem in drawn]
        right = sum(one["answer"] == result for one, result in zip(found, expected, strict=True))
        first = [
            sum(one["first"][side] == result for one, result in zip(found, expected, strict=True)) / problems
            for side in (0, 1)
        ]
        return right / problems, first, sum(one["tokens"] for one in found) / problems

    both, (demo, reasoner), tokens = await debate(*MODELS)
    measures = [
        Measure("right after a debate", both),
        Measure("right, one answer of demo", demo),
        Measure("right, one answer of demo-reasoner", reasoner),
        Measure("right after a debate above the mean of one answer", both - (demo + reasoner) / 2, at_least=0.1),
        Measure("tokens of a debate", tokens),
    ]
    for model in MODELS:
        alone, _, tokens = await debate(model, model)
        measures += [
            Measure(f"right after a debate of {model} with itself", alone),
            Measure(f"tokens of a debate of {model} with itself", tokens),
        ]
    return measures
