"""The search solves more puzzles than one sample, and than the best of as many samples as take its tokens."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.reasoning.puzzles import shuffled, written
from pie_control.client import Client

MODELS = ["demo-reasoner"]
PAPER_LINES = 198
LEAST = 6
IN_VLLM, IN_SGLANG = "no", "in part: as a program of the client"
AT_ONCE = 3
MOST_SAMPLES = 64
STEP = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)( left [\d,]+)?")


def makes_24(puzzle: str, text: str) -> bool:
    """Whether lines are right steps from the numbers to 24. What they say is left is not read: that is plain."""
    left = [int(number) for number in puzzle.split(",")]
    for line in text.splitlines():
        if (step := STEP.fullmatch(line.strip())) is None:
            return False
        one, operator, other, result = int(step[1]), step[2], int(step[3]), int(step[4])
        for number in (one, other):
            if number not in left:
                return False
            left.remove(number)
        sums = {"+": one + other == result, "-": one - other == result, "*": one * other == result}
        if not sums.get(operator, other != 0 and one == other * result):
            return False
        left.append(result)
    return left == [24]


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    measures, best = await search(client, "tree_of_thought", problems, seed)
    return [*measures, Measure("solved by the search above the best of samples", best, at_least=0.01)]


async def search(client: Client, name: str, problems: int, seed: int) -> tuple[list[Measure], float]:
    """Measures of a program that searches, and the share of the puzzles that it solves above the best of samples."""
    draw = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    searching, sampling = [await client.upload(program(one), "") for one in (name, "best_of_n")]
    drawn = [written(shuffled(draw, held_out=True)) for _ in range(problems)]

    async def solve(number: int, puzzle: str) -> tuple[bool, int, float, bool]:
        """Whether the search has found a solution, its tokens, the share of samples that are one, and whether one of
        those that take as many tokens is."""
        async with limit:
            sent: list[str] = []
            found = await client.run(searching, numbers=puzzle, seed=1000 * (seed + number), on_message=sent.append)
            solved = makes_24(puzzle, "".join(sent))
            options: Any = {"count": MOST_SAMPLES, "temperature": 1.0, "seed": 1000 * (seed + number)}
            given = await client.run(sampling, question=f"Make 24: {puzzle}", **options)
        right, left = [], int(found["tokens"])
        samples = list(zip(given["samples"], given["tokens"], strict=True))
        random.Random(number).shuffle(samples)  # they come by their probability
        for text, tokens in samples:
            if left > 0:
                right.append(makes_24(puzzle, text))
            left -= tokens
        return solved, int(found["tokens"]), sum(right) / len(right), any(right)

    found = await asyncio.gather(*(solve(*one) for one in enumerate(drawn)))
    searched, tokens, one, best = (sum(column) / problems for column in zip(*found, strict=True))
    measures = [
        Measure("solved by the search", searched),
        Measure("solved by one sample", one),
        Measure("solved by the best of samples with as many tokens", best),
        Measure("tokens of a search", tokens),
        Measure("solved by the search above one sample", searched - one, at_least=0.2),
    ]
    return measures, searched - best
