"""A text of 8 times the model's last position is read in the pages of one window, about as well as by computing each
window anew."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from examples.checks import DEMO_MODEL, Measure, program
from examples.demo_model.stories import plain_text
from pie_control.client import Client

PAPER_LINES = 60
LEAST = 1
LAST_POSITION, PAGE, STEP, WINDOW, SINK = 2048, 16, 128, 252, 4
ANEW = """
from inferlet_sdk import Context, inferlet

@inferlet
async def main(args, text: list[int], window: int, step: int, first: int):
    told = []
    for place in range(first, len(text), step):
        with Context(args.model, share=False).fill(text[place - window : place]) as ctx:
            told += await ctx.score(text[place : place + step])
    return told
"""


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    text = stories(seed, LAST_POSITION * problems + STEP + 1)
    read, first = await reading(client, text, SINK), LAST_POSITION + 1
    anew = await client.run(ANEW.encode(), text=text, window=WINDOW + SINK, step=STEP, first=first)
    ratio = perplexity(read["logprobs"][first - 1 :]) / perplexity(anew)
    return [
        Measure("pages over those of a window", read["pages"] / -(-(WINDOW + SINK) // PAGE), at_most=1.5),
        Measure("perplexity behind the last position over that of windows computed anew", ratio, at_most=1.1),
        Measure("perplexity of windows computed anew", perplexity(anew)),
    ]


def stories(seed: int, tokens: int) -> list[int]:
    """So many tokens of stories behind each other."""
    from transformers import AutoTokenizer

    draw, tokenizer = random.Random(seed), AutoTokenizer.from_pretrained(DEMO_MODEL)
    found: list[int] = []
    while len(found) < tokens:
        found += [*tokenizer(plain_text(draw)).input_ids, tokenizer.eos_token_id]
    return found[:tokens]


async def reading(client: Client, text: Sequence[int], sink: int) -> dict[str, Any]:
    """What the program tells of a text, with as many tokens in view for any number of sinks."""
    told: dict[str, Any] = await client.run(
        program("attention_sink"), text=text, window=WINDOW + SINK - sink, sink=sink
    )
    return told


def perplexity(logprobs: Sequence[float]) -> float:
    """Of tokens with these log-probabilities."""
    return math.exp(-sum(logprobs) / len(logprobs))
