"""The second program with a kept beginning has its first token in a fifth of the time, and the same text."""

from __future__ import annotations

import random
from statistics import median
from typing import Any

from transformers import AutoTokenizer

from examples.checks import DEMO_MODEL, Measure, counts, program
from examples.demo_model.stories import plain_text
from pie_control.client import Client

PAPER_LINES = 45
IN_VLLM, IN_SGLANG = "yes: automatic, by content", "yes: automatic, by content"
LEAST = 1
TIMED = 10
"""Problems from which on times are judged."""
TOKENS = 1500
TURNS = [" One day", " In the night", " The summer air", " Then", " Nobody"]


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    draw = random.Random(seed)
    equal, computed, seconds = 0, {"kept": 0, "": 0}, {"kept": list[float](), "": list[float]()}
    for number in range(problems):
        stories = "\n".join(plain_text(draw) for _ in range(20))
        beginning = tokenizer.decode(tokenizer(stories, truncation=True, max_length=TOKENS).input_ids[1:])
        first, turn = draw.sample(TURNS, 2)
        kept = f"beginning {seed} {number}"
        await client.run(program("prefix_sharing"), turn=first, beginning=beginning, name=kept)
        texts = []
        for form, name in (("kept", kept), ("", "")):
            pieces: list[str] = []
            before = (await counts(client))["input_tokens"]
            options: Any = {"turn": turn, "beginning": beginning, "name": name}
            seconds[form].append(await client.run(program("prefix_sharing"), **options, on_message=pieces.append))
            computed[form] += (await counts(client))["input_tokens"] - before
            texts.append("".join(pieces))
        equal += texts[0] == texts[1]
    return [
        Measure("texts equal to those without sharing", equal / problems, at_least=1.0),
        Measure("computed tokens, of those without sharing", computed["kept"] / computed[""], at_most=0.2),
        Measure(
            "time to the first token, of that without sharing",
            median(seconds["kept"]) / median(seconds[""]),
            at_most=0.2 if problems >= TIMED else None,
        ),
        Measure("seconds to the first token", median(seconds["kept"])),
    ]
