"""Heavy hitters in bounded pages: how well the model knows stories, beside a window as large and all of the text."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from examples.checks import Measure, program
from examples.demo_model import stories
from pie_control.client import Client

PAPER_LINES = 0  # the paper has none
LEAST = 2
BUDGET, RECENT, PAGE = 48, 40, 16
ALL = 2048


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    texts = [stories.tell(draw).text for _ in range(problems)]
    reading = await client.upload(program("heavy_hitters"), "")

    async def read(budget: int, recent: int) -> list[dict[str, Any]]:
        cut: Any = {"prompt": "<|begin|>", "budget": budget, "recent": recent}
        return list(await asyncio.gather(*(client.run(reading, text=text, **cut) for text in texts)))

    def perplexity(found: list[dict[str, Any]]) -> float:
        return float(sum(one["perplexity"] for one in found)) / problems

    hitters, window, whole = await read(BUDGET, RECENT), await read(BUDGET, BUDGET), await read(ALL, RECENT)
    return [
        Measure("most pages", max(one["pages"] for one in hitters), at_most=BUDGET // PAGE + 1),
        Measure("most pages of the whole text", max(one["pages"] for one in whole)),
        Measure("perplexity", perplexity(hitters)),
        Measure("perplexity with a window as large", perplexity(window)),
        Measure("perplexity with the whole text", perplexity(whole)),
        Measure("perplexity over that with the whole text", perplexity(hitters) / perplexity(whole), at_most=1.2),
    ]
