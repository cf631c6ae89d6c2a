"""Trying again with the steps that were right gives more right answers than one try, and takes fewer tokens than trying
anew."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.arithmetic import held_out_problems
from pie_control.client import Client

PAPER_LINES = 0  # the paper has none
LEAST = 16
AT_ONCE = 4


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    trying = await client.upload(program("reflexion"), "")
    drawn = draw.sample(list(held_out_problems()), problems)

    async def share(**options: Any) -> tuple[float, float]:
        """Right answers, and tokens of each."""

        async def ask(number: int) -> dict[str, Any]:
            options["seed"] = 1000 * (seed + number)
            async with limit:
                return dict(await client.run(trying, question=f"What is {drawn[number]}?", **options))

        found = await asyncio.gather(*map(ask, range(problems)))
        right = sum(one["answer"] == str(problem.result) for one, problem in zip(found, drawn, strict=True))
        return right / problems, sum(one["tokens"] for one in found) / problems

    one, _ = await share(rounds=1)
    learnt, tokens = await share()
    anew, tokens_anew = await share(learn=False)
    return [
        Measure("right answers of one try", one),
        Measure("right answers of four tries with what was learnt", learnt),
        Measure("right answers of four tries that begin anew", anew),
        Measure("right answers above one try", learnt - one, at_least=0.1),
        Measure("tokens over those of tries that begin anew", tokens / tokens_anew, at_most=1),
    ]
