"""Questions that a line of Python answers; and programs that loop, grow or fail, of which the model is told."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from examples.checks import Measure, program
from examples.world.serving import Settings, serving
from examples.world.village import THING, Village
from pie_control.client import Client

PAPER_LINES = 62
MODELS = ["demo-reasoner"]
LEAST = 10
FUNCTIONS = ("price", "weight")
BAD: dict[str, str | tuple[str, ...]] = {
    "while True: pass": "Error: the program was ended: used more than 1 s of processor time",
    "x = [0]\nwhile True: x += x": ("Error: the program was ended: ", "MemoryError"),
    "def f(): f()\nf()": "RecursionError: maximum recursion depth exceeded",
    "print(chr(0xd800), 1)": "? 1",
    "print(1 / 0)": "ZeroDivisionError: division by zero",
    "print(price('nothing'))": "LookupError: no thing is called 'nothing'",
    "from inferlet_sdk import launch\nlaunch(None)": "QuotaExceeded: ",
}
"""Programs, and what the model is told of them."""


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    code = await client.upload(program("codeact"), "")
    right = mended = told = 0
    async with serving(Settings(seed)) as served:
        options: dict[str, Any] = {"functions": ", ".join(FUNCTIONS), "world": served.url}
        for _ in range(problems):
            question, answer = draw_question(draw, served.world.village)
            right += await client.run(code, question, **options) == answer
            question, answer = total(draw, served.world.village)
            mended += await client.run(code, question, texts=True, **options) == answer
        for bad, words in BAD.items():
            running = await client.launch(code, question, first=bad, **options)
            told += [await running.receive() for _ in range(2)][1].startswith(words)
            await running.terminate()
    return [
        Measure("right", right / problems, at_least=0.9),
        Measure("totals right after a traceback", mended / problems),
        Measure("loops, bombs and tracebacks of which the model is told", told / len(BAD), at_least=1.0),
    ]


def listed(things: Sequence[str], word: str) -> str:
    """As in "kite, bell and cup"."""
    return f"{', '.join(things[:-1])} {word} {things[-1]}"


def values(draw: random.Random, village: Village, name: str, least: int = 2) -> dict[str, int]:
    """Some things, and a number of each; no number is there twice."""
    while True:
        things = draw.sample(village.entities[THING], draw.randint(least, 5))
        found = {thing: int(village.look_up(name, thing)) for thing in things}
        if len(set(found.values())) == len(found):
            return found


def total(draw: random.Random, village: Village) -> tuple[str, str]:
    """A question for a sum, and its answer."""
    name = draw.choice(FUNCTIONS)
    found = values(draw, village, name)
    return f"What is the total {name} of {listed(list(found), 'and')}?", str(sum(found.values()))


def draw_question(draw: random.Random, village: Village) -> tuple[str, str]:
    """A question of one of five kinds, and its answer."""
    name, kind = draw.choice(FUNCTIONS), draw.choice(("total", "highest", "lowest", "above", "difference"))
    found = values(draw, village, name)
    things = list(found)
    if kind == "total":
        return total(draw, village)
    if kind == "above":
        bound = draw.randint(5, 90)
        count = sum(value > bound for value in found.values())
        return f"How many of {listed(things, 'and')} have a {name} above {bound}?", str(count)
    if kind == "difference":
        one, other = things[:2]
        return f"How much is the {name} of {one} above that of {other}?", str(found[one] - found[other])
    best = (max if kind == "highest" else min)(things, key=lambda thing: found[thing])
    return f"Which has the {kind} {name}: {listed(things, 'or')}?", best
