"""Each token of a tree of four levels of four is computed once, as the server counts, while other texts are generated;
and each path goes on as it does alone."""

from __future__ import annotations

import math
import random

from transformers import AutoTokenizer

from examples.checks import DEMO_MODEL, Measure, counts, program
from pie_control.client import Client

PAPER_LINES = 0  # section 7.3 counts none
IN_VLLM, IN_SGLANG = (
    "in part: automatic prefix caching, no say in what stays",
    "in part: a radix tree of prefixes, no say in what stays",
)
LEAST = 1
LEVELS = BRANCHES = 4
WORDS = ["fox", "bee", "mill", "key", "lamp", "hat", "boat", "well", "goat", "barn", "rain", "wind", "seed", "bell"]


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    draw = random.Random(seed)
    computed = distinct = apart = equal = 0
    for _ in range(problems):
        parts = [[f" {one} and {draw.choice(WORDS)}" for one in draw.sample(WORDS, BRANCHES)] for _ in range(LEVELS)]
        tokens = [[len(tokenizer(part, add_special_tokens=False).input_ids) for part in level] for level in parts]
        nodes = [sum(level) * BRANCHES**depth for depth, level in enumerate(tokens)]
        before = (await counts(client))["input_tokens"]
        await client.run(program("prefix_tree"), parts=parts, tokens=1)  # the token behind a path is not run
        computed += (await counts(client))["input_tokens"] - before
        distinct += sum(nodes)
        apart += sum(sum(level) * BRANCHES ** (LEVELS - 1) for level in tokens)
        equal += await _equal(client, draw, parts)
    return [
        Measure("computed over distinct tokens", computed / distinct, at_least=1.0, at_most=1.0),
        Measure("of the tokens that paths computed apart have", computed / apart),
        Measure("paths that go on as alone, while others generate", equal / problems, at_least=1.0),
    ]


async def _equal(client: Client, draw: random.Random, parts: list[list[str]]) -> bool:
    """Whether a random path of the tree is as the text alone, with another inferlet at work."""
    other = await client.launch(program("text_completion"), prompt="Once upon a time", max_tokens=200)
    whole = await client.run(program("prefix_tree"), parts=parts)
    number = draw.randrange(math.prod(map(len, parts)))
    path = [parts[depth][number // BRANCHES ** (LEVELS - 1 - depth) % BRANCHES] for depth in range(LEVELS)]
    alone = await client.run(program("prefix_tree"), parts=[[part] for part in path])
    await other.terminate()
    return bool(whole[number] == alone[0])
