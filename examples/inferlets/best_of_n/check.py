"""The answer that is closest to the other samples is right more often than one sample, and than the most likely one."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from examples.checks import Measure, program
from examples.demo_model import structured
from examples.demo_model.talk import Talk
from pie_control.client import Client

PAPER_LINES = 0  # the paper has none
IN_VLLM, IN_SGLANG = "in part: several samples", "in part: several samples"
LEAST = 16
AT_ONCE = 4
COUNT, TEMPERATURE = 12, 0.7


def draw_problem(draw: random.Random) -> tuple[str, str]:
    """A text about somebody, who is to be described as JSON, and the object."""
    talk = Talk(draw)
    structured.from_text(talk)
    return talk.messages[0].content, talk.messages[1].content


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    choosing = await client.upload(program("best_of_n"), "")
    drawn = [draw_problem(draw) for _ in range(problems)]

    async def ask(question: str, number: int) -> dict[str, Any]:
        options: Any = {"count": COUNT, "temperature": TEMPERATURE, "seed": 1000 * (seed + number)}
        async with limit:
            return dict(await client.run(choosing, question=question, **options))

    found = await asyncio.gather(*(ask(question, number) for number, (question, _) in enumerate(drawn)))
    pairs = [(given, right) for given, (_, right) in zip(found, drawn, strict=True)]
    one = sum(text == right for given, right in pairs for text in given["samples"]) / COUNT / problems
    likely = sum(given["samples"][0] == right for given, right in pairs) / problems
    closest = sum(given["closest"] == right for given, right in pairs) / problems
    return [
        Measure("right answers, one sample", one),
        Measure("right answers, the most likely sample", likely),
        Measure("right answers, the closest sample", closest),
        Measure("the closest sample above one sample", closest - one, at_least=0.02),
        Measure("the closest sample above the most likely one", closest - likely, at_least=0.0),
    ]
