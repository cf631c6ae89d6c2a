"""A prompt that is joined from 8 of 20 modules, in any order, answers as the filled one does, for a fraction of its
tokens."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.tools import SAME_PURPOSE, TOOLS, Tool, draw_use, made_up_tool
from pie_control.client import Client

PAPER_LINES = 72
LEAST = 10
KNOWN, MADE_UP, CHOSEN = 10, 10, 8
"""Of the 20 modules, half are tools that the model knows by heart. A prompt has seven of these, and one of the others,
which is asked for."""
LONG, TURNS = 10, 5
"""A long module has so many tools; prompts of these are timed in turns."""
TIMED = 20
"""Problems from which on times are judged."""


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    known, made_up = draw.sample(distinct(TOOLS), KNOWN), distinct([made_up_tool(draw) for _ in range(99)])[:MADE_UP]
    name = await client.upload(program("modular_caching"), "")

    async def ask(question: str, modules: list[str], **options: Any) -> dict[str, Any]:
        told: dict[str, Any] = await client.run(name, question=question, modules=modules, **options)
        return told

    async def tokens_of(question: str, chosen: list[str], join: bool) -> int:
        """How many are computed for the first token of an answer."""
        before = await computed(client)
        await ask(question, chosen, tokens=1, join=join)
        return await computed(client) - before

    await ask("Hello.", [*map(written, [*known, *made_up])], tokens=1)  # from now on all modules are there
    right = dict.fromkeys(("joined", "filled", "left out"), 0)
    seconds = defaultdict[str, list[float]](list)
    for number in range(problems):
        one, *others = draw.sample(known, CHOSEN)
        wanted = draw.choice(made_up)
        use, chosen = draw_use(draw, wanted), [*map(written, draw.sample([wanted, *others], CHOSEN))]
        if number == 0:
            ran, ran_filled = [await tokens_of(use.ask, chosen, join) for join in (True, False)]
        for kind, modules in (("joined", chosen), ("filled", chosen), ("left out", [*map(written, [one, *others])])):
            told = await ask(use.ask, modules, join=kind != "filled")
            right[kind] += told["answer"] == use.call
            seconds[kind].append(told["seconds"])
    for _ in range(TURNS):
        long = [written(*(made_up_tool(draw) for _ in range(LONG))) for _ in range(CHOSEN)]
        await ask("Hello.", long, tokens=1)
        for kind in ("joined", "filled"):
            told = await ask("Hello.", draw.sample(long, CHOSEN), tokens=1, join=kind == "joined")
            seconds[f"long, {kind}"].append(told["seconds"])
    share = right["joined"] / max(right["filled"], 1)
    return [
        Measure("tokens computed for the first one, over filling", ran / ran_filled, at_most=0.25),
        Measure("right answers over those of the filled prompt", share, at_least=0.95),
        Measure("right answers of the filled prompt", right["filled"] / problems),
        Measure("right answers where the module that is needed is left out", right["left out"] / problems),
        Measure("time to the first token over filling", median(seconds["joined"]) / median(seconds["filled"])),
        Measure(
            f"time to the first token over filling, modules of {LONG} tools",
            median(seconds["long, joined"]) / median(seconds["long, filled"]),
            at_most=0.25 if problems >= TIMED else None,
        ),
    ]


def written(*tools: Tool) -> str:
    """A module."""
    return "".join(f"{tool.line}\n" for tool in tools)


def distinct(tools: Sequence[Tool]) -> list[Tool]:
    """Those of which no two are for the same."""
    later = {name for names in SAME_PURPOSE for name in sorted(names)[1:]}
    return [*{tool.description: tool for tool in tools if tool.name not in later}.values()]


async def computed(client: Client) -> int:
    """Input tokens of the server so far."""
    (worker,) = (await client.statistics())["models"]["demo"]
    return int(worker["scheduler"]["input_tokens"])
