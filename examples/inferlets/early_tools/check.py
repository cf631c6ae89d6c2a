"""Calls begin as soon as their arguments are complete, and give what they give after the whole text."""

from __future__ import annotations

import random
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.world import CHILDREN, CITIES, HOBBIES, WORKERS
from examples.world.serving import Settings, serving
from pie_control.client import Client

PAPER_LINES = 0  # the paper has none
LEAST = 3
TOOL_TOKENS = 20
"""What a tool takes, in tokens that the model writes meanwhile: the gain is counted and not timed."""


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    code = await client.upload(program("early_tools"), "")
    equal = right = begun = calls = early = late = 0
    async with serving(Settings(seed, slow=0)) as served:
        for _ in range(problems):
            name, friend = (one.name for one in draw.sample(CHILDREN, 2))
            city, job, hobby = draw.choice(CITIES), draw.choice(WORKERS), draw.choice(HOBBIES)
            text = f"{name} lives in {city} and has a friend called {friend}."
            text += f" {name} works as a {job} and likes to {hobby}."
            options: dict[str, Any] = {"text": text, "world": served.url}
            at_once, after = [await client.run(code, early=how, **options) for how in (True, False)]
            equal += (at_once["record"], at_once["found"]) == (after["record"], after["found"])
            home = served.world.village.look_up("home", friend)
            right += at_once["found"].get("friend") == home
            begun += sum(place < at_once["tokens"] for place in at_once["begun"].values())
            calls += len(at_once["begun"])
            early += max(at_once["tokens"], max(at_once["begun"].values()) + TOOL_TOKENS)
            late += after["tokens"] + TOOL_TOKENS
    return [
        Measure("calls that begin before the text is complete", begun / calls, at_least=1.0),
        Measure("equal records and results", equal / problems, at_least=1.0),
        Measure(f"length with tools of {TOOL_TOKENS} tokens, over calling them afterwards", early / late, at_most=0.8),
        Measure("homes of the friend that are right", right / problems),
    ]
