"""Programs that keep what a model writes to a grammar, in the sandbox, on the real kernels and the demo model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from pie_control.testing.in_process import InProcessClient
from pie_inference.config import WorkerConfig
from pie_inference.protocol import Sample
from pie_inference.serving.worker import Worker
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, started
from tests.helpers.tree import DEMO_MODEL

PROGRAM = """
from dataclasses import dataclass
from typing import Literal

from inferlet_sdk import *
from inferlet_sdk.grammars.grammar import Grammar

@dataclass
class Animal:
    kind: Literal["cat", "dog", "bird"]
    legs: int
    names: tuple[Literal["Tom", "Lily"], Literal["Max", "Sue"]]

def paint(color: Literal["red", "green"], size: int = 1, big: bool = False) -> str:
    '''Paints something.'''
    return f"painted {color} {size} {big}"

async def main(args):
    found = {}
    async with Context(args.model) as ctx:
        animal = await ctx.fill("One day, a small animal: ").generate_as(Animal, 60)
        found["animal"] = [animal.kind, type(animal.legs).__name__, *animal.names]

    async with Context(args.model) as ctx:  # one token at a time: the mask is made where the token is sampled
        ctx.fill("The date is ")
        matcher = await Grammar.of_regex("[0-9]{2}/[0-9]{2}").matcher()
        steps = []
        async for piece in ctx.generate(grammar=matcher, max_tokens=20, run_ahead=False):
            steps.append(piece)
        found["date"] = ["".join(steps), len(steps), matcher.state.over]

    for choice in ("required", "paint"):
        async with Context(args.model) as ctx:
            answer = await Tools(paint).chat(ctx, "Hello! How are you?", choice=choice, strict=True, max_tokens=40)
            found[choice] = [[call.name, call.error is None, call.text[:8]] for call in answer.calls]
            found["answered"] = "<tool>" not in answer.text
    return found
"""


class Watched(InProcessClient):
    """Keeps what goes to the sampler."""

    def __init__(self, worker: Worker) -> None:
        self.samples: list[Sample] = []
        super().__init__(worker)
        run = worker.run

        def watched(wave: Any) -> Any:
            self.samples += [batch for batch in wave.batches if isinstance(batch, Sample)]
            return run(wave)

        worker.run = watched  # type: ignore[method-assign]


async def play(cache: Path, client: InProcessClient) -> Any:
    async with started(cache, client) as server, asyncio.timeout(HANG_SECONDS):
        _, listener = await launch(server, PROGRAM)
        ended = await listener.ended
        assert ended.status == "finished", ended.error
        return json.loads(ended.result or "")


def test_values_calls_and_single_steps_keep_to_their_grammars(guest_cache: Path) -> None:
    worker = Worker(WorkerConfig(DEMO_MODEL, "demo", dtype="float32", device="cpu", pages=256, embeds=2048, threads=1))
    client = Watched(worker)
    found = asyncio.run(play(guest_cache, client))
    kind, legs, first, second = found["animal"]
    assert kind in ("cat", "dog", "bird")
    assert legs == "int"
    assert first in ("Tom", "Lily")
    assert second in ("Max", "Sue")
    date, steps, over = found["date"]
    assert len(date) == 5
    assert date[2] == "/"
    assert date.replace("/", "").isdigit()
    assert over
    assert 1 < steps <= 5
    assert found["paint"][0] == ["paint", True, "painted "]
    assert found["required"]
    assert all(call[:2] == ["paint", True] for call in found["required"])
    assert found["answered"]
    constrained = [batch for batch in client.samples if batch.matchers is not None and batch.matchers.any()]
    assert len(constrained) > steps
    assert all(batch.allowed is None for batch in constrained)  # no mask has travelled
