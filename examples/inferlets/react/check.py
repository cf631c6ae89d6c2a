"""Questions of 1 to 8 look-ups in the agent's world, with tools that the model knows and with ones that nobody does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from examples.checks import Measure, program
from examples.world.serving import Served, Settings, serving
from examples.world.village import MOST_LOOK_UPS, PERSON
from pie_control.client import Client

PAPER_LINES = 60
MODELS = ["demo-reasoner"]
LEAST = 2 * MOST_LOOK_UPS
PEOPLE = ("person", "animal")
UNSEEN = ("sister", "tailor", "baker", "island", "flag", "guard", "bridge", "queen", "garage", "uncle")
"""Tools that no text of the training has."""
OTHERS = 2
"""Tools that a question does not need."""
AT_ONCE = 8


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    code = await client.upload(program("react"), "")
    async with serving(Settings(seed, slow=0, more=UNSEEN)) as served:
        people = [name for name, one in served.world.village.relations.items() if one.of in PEOPLE]
        known = [name for name in people if name not in UNSEEN]
        share, by_length = await right(client, code, served, draw, problems, known)
        renamed, _ = await right(client, code, served, draw, problems, UNSEEN, known)
        as_they_are, _ = await right(client, code, served, draw, problems, UNSEEN)
    return [
        Measure("right", share, at_least=0.9),
        Measure("right with tools never seen in training, under names that it knows", renamed, at_least=0.8),
        Measure("right with tools never seen in training, as they are", as_they_are, at_least=0.8),
        *(Measure(f"right of {length} look-ups", good) for length, good in by_length.items()),
    ]


async def right(
    client: Client,
    code: str,
    served: Served,
    draw: random.Random,
    problems: int,
    names: Sequence[str],
    aliases: Sequence[str] = (),
) -> tuple[float, dict[int, float]]:
    """The share of right answers, of all questions and of those of each length. Lengths take turns.
    `aliases`: names under which the model is told of the tools."""
    limit = asyncio.Semaphore(AT_ONCE)
    village = served.world.village

    async def one(look_ups: int, tools: list[str], question: str, answer: str) -> tuple[int, bool]:
        async with limit:
            running = await client.launch(
                code, world=served.url, tools=", ".join(tools), grounded=True, aliases=", ".join(aliases)
            )
            await running.send(question)
            await running.send("")
            said = (await running.result())[0]
        return look_ups, said == f"Answer: {answer}"

    tasks = []
    for number in range(problems):
        look_ups = number % MOST_LOOK_UPS + 1
        question = village.question(draw, look_ups, names)
        needed = [step.relation for step in question.steps]
        spare = [name for name in names if name not in needed and village.relations[name].of == PERSON]
        tools = needed + draw.sample(spare, OTHERS)
        draw.shuffle(tools)
        tasks.append(one(look_ups, tools, question.text, question.answer))
    ends = await asyncio.gather(*tasks)
    lengths = {look_ups: [good for length, good in ends if length == look_ups] for look_ups, _ in ends}
    return sum(good for _, good in ends) / problems, {
        length: sum(goods) / len(goods) for length, goods in lengths.items()
    }
