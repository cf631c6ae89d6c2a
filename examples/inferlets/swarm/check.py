"""Eight members of a swarm, each of which knows one number of eight, find the sum. The model alone does not."""

from __future__ import annotations

import random

from examples.checks import Measure, program
from pie_control.client import Client

PAPER_LINES = 95
LEAST = 3
MEMBERS = 8
MOST = 12
"""The largest part: the demo model adds numbers up to 99."""


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    swarm = await client.upload(program("swarm"), "")
    right = alone = messages = 0
    for _ in range(problems):
        parts = [draw.randint(1, MOST) for _ in range(MEMBERS)]
        found = await client.run(swarm, parts=parts)
        right += found["answer"] == sum(parts)
        messages += found["messages"]
        alone += (await client.run(swarm, parts=parts, alone=True))["answer"] == sum(parts)
    return [
        Measure("right", right / problems, at_least=0.9),
        Measure("messages", messages / problems, at_least=32, at_most=32),
        Measure("right if the model is told all at once", alone / problems),
    ]
