"""Each point of an outline gets a sentence of its own, and all points take little more time than one."""

from __future__ import annotations

import random

from examples.checks import Measure, program
from examples.demo_model.topics import TOPICS
from pie_control.client import Client

PAPER_LINES = 82
IN_VLLM, IN_SGLANG = "no", "in part: as a program of the client"
LEAST = 5
TIMED = 10
"""Problems from which on waves are judged: a busy machine spreads branches over more of them."""
POINTS = 4


async def check(client: Client, problems: int, seed: int) -> list[Measure]:
    draw = random.Random(seed)
    writing = await client.upload(program("skeleton_of_thought"), "")
    own = right = points = 0
    waves = {True: 0, False: 0}
    for _ in range(problems):
        topic = draw.choice(list(TOPICS))
        headings, sentences = await client.run(writing, topic=topic, points=POINTS)
        own += len(set(headings)) == len(set(sentences)) == POINTS
        known = dict(TOPICS[topic])
        right += sum(known.get(heading) == sentence for heading, sentence in zip(headings, sentences, strict=True))
        points += len(headings)
        for at_once in waves:
            before = await _waves(client)
            await client.run(writing, topic=topic, headings=headings, at_once=at_once)
            waves[at_once] += await _waves(client) - before
    return [
        Measure("outlines in which each point has a sentence of its own", own / problems, at_least=0.9),
        Measure(
            "waves of four points at once over those in turn",
            waves[True] / waves[False],
            at_most=0.5 if problems >= TIMED else None,
        ),
        Measure("sentences that are those of their points", right / points),
    ]


async def _waves(client: Client) -> int:
    (worker,) = next(iter((await client.statistics())["models"].values()))
    return int(worker["scheduler"]["waves"])
