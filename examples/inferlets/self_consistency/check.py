"""The vote of several chains is right more often than one of them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.arithmetic import held_out_problems
from pie_control.client import Client

PAPER_LINES = 0  # the paper has none
IN_VLLM, IN_SGLANG = "in part: several samples", "in part: several samples"
LEAST = 12
AT_ONCE = 4


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    voting = await client.upload(program("self_consistency"), "")
    drawn = draw.sample(list(held_out_problems()), problems)

    async def ask(question: str, number: int) -> dict[str, Any]:
        async with limit:
            return dict(await client.run(voting, question=question, seed=1000 * (seed + number)))

    found = await asyncio.gather(*(ask(f"What is {problem}?", number) for number, problem in enumerate(drawn)))
    pairs = list(zip(found, (str(problem.result) for problem in drawn), strict=True))
    one = sum(answer == right for given, right in pairs for answer in given["answers"])
    one /= sum(len(given["answers"]) for given, _ in pairs)
    voted = sum(given["answer"] == right for given, right in pairs) / problems
    return [
        Measure("right answers of one chain", one),
        Measure("right answers by vote", voted),
        Measure("right answers by vote above those of one chain", voted - one, at_least=0.05),
    ]
