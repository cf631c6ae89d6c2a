"""Records of villagers: the model looks up what it does not know, and only that."""

from __future__ import annotations

import random
from typing import Any

from examples.checks import Measure, program
from examples.demo_model.world import ADULTS
from examples.world.serving import Settings, serving
from examples.world.village import Village
from pie_control.client import Client

PAPER_LINES = 0  # the paper has none
LEAST = 4
KNOWN = ("job", "place")
"""What the demo model has learned of the adults. Their friends and cities are in the world alone."""
UNKNOWN = ("friend", "city")
ALWAYS, BOUND, NEVER = -1.0, 1.5, 99.0


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    code = await client.upload(program("entropy_retrieval"), "")
    village = Village(seed)
    right = dict.fromkeys((ALWAYS, BOUND, NEVER), 0)
    looked_up = dict(right)
    fields = needed = 0
    async with serving(Settings(seed)) as served:
        for _ in range(problems):
            who = draw.choice(ADULTS)
            unknown = draw.sample(UNKNOWN, draw.randint(1, 2))
            keys = [*KNOWN, *unknown]
            draw.shuffle(keys)
            truth = {"job": who.kind, "place": who.place}
            truth |= {key: village.look_up(key, who.name) for key in unknown}
            fields += len(keys)
            needed += len(unknown)
            for bound in right:
                options: dict[str, Any] = {"keys": ", ".join(keys), "world": served.url, "bound": bound}
                found = await client.run(code, name=who.name, **options)
                right[bound] += sum(found["record"][key] == truth[key] for key in keys)
                looked_up[bound] += len(found["looked_up"])
    return [
        Measure("values right", right[BOUND] / fields, at_least=0.9),
        Measure("values right without looking up", right[NEVER] / fields),
        Measure("values right, each looked up", right[ALWAYS] / fields),
        Measure("look-ups, over looking up each", looked_up[BOUND] / looked_up[ALWAYS], at_most=0.6),
        Measure("look-ups, over values that the model cannot know", looked_up[BOUND] / needed),
    ]
