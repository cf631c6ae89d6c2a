"""Sampled texts of a JSON grammar in EBNF all parse."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.chat import fact
from examples.demo_model.evaluate import skill_case
from pie_control.client import Client

PAPER_LINES = 225
IN_VLLM, IN_SGLANG = "yes", "yes"
LEAST = 16
AT_ONCE = 8
JSON = r"""
start: object
object: "{" [pair (", " pair)*] "}"
array: "[" [value (", " value)*] "]"
pair: STRING ": " value
value: object | array | STRING | NUMBER | "true" | "false" | "null"
STRING: /"([^"\\\x00-\x1f]|\\["\\bfnrt]){0,60}"/
NUMBER: /-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,8})?/
"""

draw_question = skill_case(fact)


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    kept, free = [await client.upload(program(name)) for name in ("grammars", "text_completion")]

    async def parses(question: str, number: int, constrained: bool) -> bool:
        pieces: list[str] = []
        async with limit:
            if constrained:
                await client.run(kept, text=question, grammar=JSON, seed=number, on_message=pieces.append)
            else:
                prompt = f"<|begin|><|user|>{question}<|end|><|assistant|>"
                options: Any = {"prompt": prompt, "max_tokens": 400, "temperature": 1.0, "seed": number}
                await client.run(free, **options, on_message=pieces.append)
        try:
            return isinstance(json.loads("".join(pieces)), dict)
        except ValueError:
            return False

    questions = [f"{draw_question(draw).messages[-1].content} Answer in JSON." for _ in range(problems)]
    with_grammar, without = await asyncio.gather(
        *(
            asyncio.gather(*(parses(*one, kind) for one in zip(questions, range(seed, seed + problems), strict=True)))
            for kind in (True, False)
        )
    )
    return [
        Measure("texts that parse", sum(with_grammar) / problems, at_least=1.0),
        Measure("texts that parse without a grammar", sum(without) / problems),
    ]
