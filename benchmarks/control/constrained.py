"""What does it cost to keep texts to a JSON Schema?

Inferlets generate the same number of tokens, free and kept to a schema, at once and in turns. On the demo model, whose
steps are short and whose vocabulary is small; and on one with random weights and a vocabulary of 128k.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pie_control.client import Client

from ..plans import refuse_unknown
from ..report import ROOT
from ..support.guests import launch_many, source
from ..support.models.random_models import LLAMA_128K, random_model
from ..support.processes import processor_seconds
from ..support.samples import median
from ..support.server import Server, scheduler_counts, serving

DEMO = "demo"
DEMO_MODEL = ROOT / "pie_inference" / "demo_model"
MODELS = (DEMO, LLAMA_128K)
WARM_UP_TOKENS = 24
WORD: Mapping[str, Any] = {"type": "string", "maxLength": 20}
PERSON: Mapping[str, Any] = {
    "name": WORD,
    "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "city": WORD,
    "job": {"enum": ["baker", "farmer", "teacher", "nurse", "builder"]},
    "likes": {"type": "array", "items": WORD, "maxItems": 3},
    "height": {"type": "number"},
    "married": {"type": "boolean"},
}
SCHEMA: Mapping[str, Any] = {
    "type": "array",
    "items": {"type": "object", "properties": PERSON, "required": list(PERSON), "additionalProperties": False},
    "minItems": 1000,
}
"""People, more than there is room for: so a text never ends before the tokens that are wanted."""
PROMPT = "Write JSON for {number} people with name, age, city, job, likes, height and married: "


@dataclass(frozen=True)
class Plan:
    """For each of `models` and number of `inferlets`, `rounds` turns of both, of `tokens` tokens each. `tree`: the tree
    to serve from, if not this one."""

    models: tuple[str, ...]
    inferlets: tuple[int, ...]
    tokens: int
    rounds: int
    tree: Path | None = None

    def __post_init__(self) -> None:
        refuse_unknown("model", self.models, MODELS)


FULL = Plan(MODELS, (1, 8, 32), tokens=200, rounds=5)
QUICK = Plan(MODELS, (32,), tokens=100, rounds=2)


@dataclass(frozen=True)
class Row:
    """Medians over the rounds. `tokens_s`: tokens of all inferlets a second, from when they are told to begin until the
    last has its text; `ratio`: the median of the rounds' ratios. `steps`: tokens that the worker sampled for each token
    of a kept text; others were forced and run together. `worker_us`, `control_us`: processor time for a token, of the
    worker, and of control process and application hosts."""

    model: str
    inferlets: int
    free_tokens_s: float
    kept_tokens_s: float
    ratio: float
    steps: float
    free_worker_us: float
    kept_worker_us: float
    free_control_us: float
    kept_control_us: float


async def run(plan: Plan) -> list[Row]:
    """One row for each model and number of inferlets."""
    return [row for model in plan.models for row in await _measure_model(model, plan)]


@dataclass(frozen=True)
class _Turn:
    """Tokens a second, sampled tokens for each, and microseconds of processor time for each."""

    tokens_s: float
    steps: float
    worker_us: float
    control_us: float


async def _measure_model(name: str, plan: Plan) -> list[Row]:
    folder = DEMO_MODEL if name == DEMO else random_model(name)
    settings: dict[str, Any] = {"model": folder, "device": "cpu", "pages": 2048}
    async with serving(tree=plan.tree, **settings) as server, Client(server.url) as client:
        measured = _Measured(server, client, await client.upload(source("constrained"), "constrained"))
        return [await measured.row(name, inferlets, plan) for inferlets in plan.inferlets]


class _Measured:
    """A server that is measured."""

    def __init__(self, server: Server, client: Client, program: str) -> None:
        self._server, self._client, self._program = server, client, program

    async def row(self, model: str, inferlets: int, plan: Plan) -> Row:
        await self._both(inferlets, WARM_UP_TOKENS)
        rounds = [await self._both(inferlets, plan.tokens) for _ in range(plan.rounds)]
        free, kept = zip(*rounds, strict=True)
        ratio = median([one.tokens_s / other.tokens_s for other, one in rounds])
        print(f"{model}, {inferlets} at once: {ratio:.2f}", file=sys.stderr, flush=True)

        def middle(turns: tuple[_Turn, ...], name: str) -> float:
            return round(median([getattr(turn, name) for turn in turns]), 3)

        return Row(
            model=model,
            inferlets=inferlets,
            free_tokens_s=middle(free, "tokens_s"),
            kept_tokens_s=middle(kept, "tokens_s"),
            ratio=round(ratio, 3),
            steps=middle(kept, "steps"),
            free_worker_us=middle(free, "worker_us"),
            kept_worker_us=middle(kept, "worker_us"),
            free_control_us=middle(free, "control_us"),
            kept_control_us=middle(kept, "control_us"),
        )

    async def _both(self, inferlets: int, tokens: int) -> tuple[_Turn, _Turn]:
        """A turn of free texts, and one of texts that are kept to the schema."""
        return await self._turn(inferlets, tokens, ""), await self._turn(inferlets, tokens, json.dumps(SCHEMA))

    async def _turn(self, inferlets: int, tokens: int, schema: str) -> _Turn:
        arguments = f"prompt={PROMPT.format(number=inferlets)}", f"max_tokens={tokens}", f"schema={schema}"
        running = await launch_many(self._client, self._program, inferlets, *arguments)
        await asyncio.gather(*(one.receive() for one in running))  # all prompts are in the cache
        before, processor = await self._client.statistics(), processor_seconds(self._server.pid)
        start = time.perf_counter()
        await asyncio.gather(*(one.send("go") for one in running))
        results = await asyncio.gather(*(one.result() for one in running))
        seconds = time.perf_counter() - start
        used, after = processor_seconds(self._server.pid), await self._client.statistics()
        count = sum(one["tokens"] for one in results)
        if count != inferlets * tokens:
            raise RuntimeError(f"{inferlets} inferlets gave {count} tokens instead of {tokens} each")
        sampled = [scheduler_counts(one)["commands"].get("sample", 0) for one in (before, after)]

        def part(*names: str) -> float:
            seconds = sum(used.get(name, 0.0) - processor.get(name, 0.0) for name in names)
            return float(1e6 * seconds / count)

        return _Turn(count / seconds, (sampled[1] - sampled[0]) / count, part("worker"), part("control", "hosts"))
