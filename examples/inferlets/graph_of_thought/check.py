"""The graph sorts 32 digits with half the errors of one try, and keeps the facts of four notes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import pairwise
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.reasoning.merging import draw_digits, draw_fact
from pie_control.client import Client

MODELS = ["demo-reasoner"]
PAPER_LINES = 87
LEAST = 3
AT_ONCE = 2
DIGITS, NOTES, FACTS, SHARED = 32, 4, 3, 1


def errors(digits: str, text: str) -> int:
    """How many digits are too many, are missing, or come before a smaller one."""
    wanted, given = Counter(digits), Counter(text)
    return ((wanted - given) + (given - wanted)).total() + sum(one > other for one, other in pairwise(text))


def draw_notes(draw: random.Random) -> tuple[list[str], set[str]]:
    """Notes, each of which has a fact of the one before it, and all facts."""
    facts: dict[str, None] = {}
    while len(facts) < NOTES * (FACTS - SHARED) + SHARED:
        facts[draw_fact(draw)] = None
    starts = range(0, NOTES * (FACTS - SHARED), FACTS - SHARED)
    return [" ".join(list(facts)[start : start + FACTS]) for start in starts], set(facts)


def kept(text: str) -> set[str]:
    """The facts of a text."""
    return {f"{one.strip()}." for one in text.split(".") if one.strip()}


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    graph, once = [await client.upload(program(name), "") for name in ("graph_of_thought", "best_of_n")]

    async def solve(digits: str, notes: list[str]) -> tuple[str, str, str]:
        """The digits sorted by the graph, by one try, and the merged notes."""
        options: Any = {"question": f"Sort: {digits}", "count": 1, "temperature": 0.0}
        async with limit:
            merged = str(await client.run(graph, notes=notes))
            one_try = await client.run(once, **options)
            return str(await client.run(graph, digits=digits)), str(one_try["samples"][0]), merged

    drawn = [(draw_digits(draw, DIGITS), *draw_notes(draw)) for _ in range(problems)]
    found = await asyncio.gather(*(solve(digits, notes) for digits, notes, _ in drawn))
    wrong = wrong_once = right = facts = all_facts = 0
    for (digits, _, told), (in_order, one_try, merged) in zip(drawn, found, strict=True):
        wrong += errors(digits, in_order)
        wrong_once += errors(digits, one_try)
        right += in_order == "".join(sorted(digits))
        facts += len(told & kept(merged))
        all_facts += len(told)
    return [
        Measure("errors of the graph", wrong / problems),
        Measure("errors of one try", wrong_once / problems),
        Measure("errors of the graph over those of one try", wrong / max(wrong_once, 1), at_most=0.5),
        Measure("lists without an error", right / problems),
        Measure("facts kept of four notes", facts / all_facts, at_least=0.9),
    ]
