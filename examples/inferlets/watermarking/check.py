"""The detector tells marked stories from plain ones, and marked ones are as good."""

from __future__ import annotations

import asyncio
import random
import re
from functools import cache
from math import log
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.story_checks import STARTS, closed, known_words, same_beings, same_things
from pie_control.client import Client

PAPER_LINES = 43
IN_VLLM, IN_SGLANG = "no; a custom logits processor can", "no; a custom logit processor can"
LEAST = 12
TOKENS = 400
ALARM = log(1000)
"""Evidence from which a text counts as marked: a plain one has it with one key in 1000 at most."""
REPEATED = "ha " * 100
KEYS = 60
"""Keys by which a text that repeats itself is judged."""
AT_ONCE = 8

words = cache(known_words)


def is_good(text: str) -> bool:
    """Whether a story passes the demo model's checks."""
    known = set(re.findall("[A-Za-z]+", text)) <= words()
    return known and closed(text) and same_beings(text) and same_things(text)


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    marking, plain_text = [await client.upload(program(name), "") for name in ("watermarking", "text_completion")]

    async def story(number: int, start: str, marked: bool) -> tuple[bool, float]:
        """Whether it is good, and the evidence of its mark."""
        pieces, key = [start], f"{seed} {number}"
        async with limit:
            if marked:
                await client.run(marking, prompt=start, tokens=TOKENS, key=key, on_message=pieces.append)
            else:
                options: Any = {"max_tokens": TOKENS, "temperature": 0.7, "top_k": 64, "seed": number}
                await client.run(plain_text, prompt=start, on_message=pieces.append, **options)
            text = "".join(pieces)
            return is_good(text), float(await client.run(marking, text=text, key=key))

    async def evidence(key: int) -> float:
        async with limit:
            return float(await client.run(marking, text=REPEATED, key=f"{seed} {key}"))

    repeated = await asyncio.gather(*map(evidence, range(KEYS)))
    starts = [draw.choice(STARTS) for _ in range(problems)]
    marked, plain = await asyncio.gather(
        *(asyncio.gather(*(story(*one, kind) for one in enumerate(starts))) for kind in (True, False))
    )
    above = [(one > other) + (one == other) / 2 for _, one in marked for _, other in plain]
    good, good_plain = (sum(good for good, _ in stories) / problems for stories in (marked, plain))
    return [
        Measure("area under the curve of the detector", sum(above) / len(above), at_least=0.99),
        Measure("false alarms", sum(found > ALARM for _, found in plain) / problems, at_most=0.01),
        Measure(
            "false alarms on one word, again and again", sum(found > ALARM for found in repeated) / KEYS, at_most=0.02
        ),
        Measure("marked stories that are found", sum(found > ALARM for _, found in marked) / problems),
        Measure("stories that pass the checks, over plain ones", good / max(good_plain, 1 / problems), at_least=0.95),
        Measure("plain stories that pass", good_plain),
    ]
