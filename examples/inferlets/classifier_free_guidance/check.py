"""What users said about themselves is remembered more often if it counts more, at the same temperature."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.chat import MEMORIES
from examples.demo_model.grammar import fill
from pie_control.client import Client

PAPER_LINES = 0  # the paper has none
LEAST = 16
AT_ONCE = 4
SCALE = 1.5


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    guiding = await client.upload(program("classifier_free_guidance"), "")
    drawn = [_draw_problem(draw) for _ in range(problems)]

    async def share(**options: Any) -> float:
        """Answers that have what was said."""

        async def ask(number: int) -> bool:
            told, question, value = drawn[number]
            async with limit:
                answer = await client.run(guiding, told=told, question=question, seed=seed + number, **options)
            return value in answer

        return sum(await asyncio.gather(*map(ask, range(problems)))) / problems

    plain, guided = await share(scale=1.0), await share(scale=SCALE)
    return [
        Measure("answers that have what was said", guided),
        Measure("answers that have it without guidance", plain),
        Measure("answers that have it above those without guidance", guided - plain, at_least=0.1),
        Measure("answers that have it at temperature 1", await share(scale=SCALE, temperature=1.0)),
        Measure("answers that have it at temperature 1 without guidance", await share(scale=1.0, temperature=1.0)),
    ]


def _draw_problem(draw: random.Random) -> tuple[list[dict[str, str]], str, str]:
    """What a user says about themselves, a question about it, and the word that the answer has to have."""
    memory = draw.choice(list(MEMORIES.values()))
    value = memory.draw(draw)
    said = fill(draw, f"[{memory.say}]", {"v": value})
    told = [{"role": "user", "content": said}, {"role": "assistant", "content": "I see."}]
    return told, fill(draw, f"[{memory.ask}]"), value
