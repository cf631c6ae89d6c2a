"""Nested sums of 8 to 32 digits, up to five deep: right with a context for each call, not with a straight answer."""

from __future__ import annotations

import asyncio
import random

from examples.checks import Measure, program
from examples.demo_model.reasoning.sums import draw_sums, is_held_out, system_text, value
from pie_control.client import Client

MODELS = ["demo-reasoner"]
PAPER_LINES = 106
LEAST = 6
AT_ONCE = 2
DIGITS = (8, 16, 32)


def draw_problem(draw: random.Random, digits: int) -> tuple[str, str, str]:
    """Sums that training never shows, the letter that is asked for, and what it comes to."""
    while True:
        root, sums = draw_sums(draw, digits)
        if is_held_out(text := system_text(draw, sums)):
            return text, root, str(value(sums, root))


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    telling = await client.upload(program("recursion_of_thought"), "")
    sizes = [DIGITS[number % len(DIGITS)] for number in range(problems)]
    drawn = [draw_problem(draw, digits) for digits in sizes]

    async def ask(sums: str, letter: str, straight: bool) -> str:
        async with limit:
            return str(await client.run(telling, sums=sums, letter=letter, straight=straight))

    found = [
        await asyncio.gather(*(ask(sums, root, straight) for sums, root, _ in drawn)) for straight in (False, True)
    ]
    right, straight = (
        [answer == expected for answer, (_, _, expected) in zip(answers, drawn, strict=True)] for answers in found
    )
    largest = [one for one, digits in zip(right, sizes, strict=True) if digits == max(DIGITS)]
    return [
        Measure("right with recursion", sum(right) / problems, at_least=0.8),
        Measure("right with recursion, 32 digits", sum(largest) / len(largest)),
        Measure("right straight", sum(straight) / problems, at_most=0.3),
    ]
