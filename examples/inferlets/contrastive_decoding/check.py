"""What users said about themselves is remembered more often in contrast to an amateur who has not heard it, at the same
temperature. Sums gain by the bound on what is plausible, and not by a second model as the amateur."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.arithmetic import held_out_problems
from examples.demo_model.chat import MEMORIES
from examples.demo_model.grammar import fill
from pie_control.client import Client

PAPER_LINES = 0  # the paper has none
MODELS = ["demo", "demo-reasoner"]
LEAST = 16
AT_ONCE = 4
MANY = 40
"""Problems from which sums are asked, too: they take longer."""
Problem = tuple[list[dict[str, str]], str]


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    limit = asyncio.Semaphore(AT_ONCE)
    contrasting = await client.upload(program("contrastive_decoding"), "")
    memories = [_draw_memory(draw) for _ in range(problems)]
    sums = [
        ([{"role": "user", "content": f"What is {problem}?"}], f"Answer: {problem.result}")
        for problem in draw.sample(list(held_out_problems()), problems)
    ]

    async def share(drawn: Sequence[Problem], **options: Any) -> float:
        """Answers that end with, or have, what is right."""

        async def ask(number: int) -> bool:
            messages, value = drawn[number]
            async with limit:
                answer = await client.run(contrasting, messages=messages, seed=seed + number, tokens=80, **options)
            return answer.endswith(value) if drawn is sums else value in answer

        return sum(await asyncio.gather(*map(ask, range(problems)))) / problems

    plain: dict[str, Any] = {"beta": 0.0, "alpha": 0.0}
    contrast, without = await share(memories), await share(memories, **plain)
    measures = [
        Measure("answers that have what was said", contrast),
        Measure("answers that have it by plain sampling", without),
        Measure("answers that have it above those by plain sampling", contrast - without, at_least=0.1),
        Measure("answers that have it by the bound alone", await share(memories, beta=0.0)),
        Measure("answers that have it, a second model as the amateur", await share(memories, amateur="demo-reasoner")),
    ]
    if problems < MANY:
        return measures
    return [
        *measures,
        Measure("sums right, a second model as the amateur", await share(sums, amateur="demo-reasoner")),
        Measure("sums right by the bound alone", await share(sums, beta=0.0)),
        Measure("sums right by plain sampling", await share(sums, **plain)),
    ]


def _draw_memory(draw: random.Random) -> Problem:
    """A chat in which a user asks for what was said before, and the word that the answer has to have."""
    memory = draw.choice(list(MEMORIES.values()))
    value = memory.draw(draw)
    contents = (fill(draw, f"[{memory.say}]", {"v": value}), "I see.", fill(draw, f"[{memory.ask}]"))
    roles = ("user", "assistant", "user")
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)], value
