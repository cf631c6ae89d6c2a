"""What does it cost to keep texts to a JSON Schema?

Inferlets generate the same number of tokens, free and kept to a schema, at once, in pairs of turns on one server. Each
pair gives a ratio, whose turns are a few seconds apart; and every second pair begins with the kept turn, so that a
machine that slows down or warms up falls on both. On the demo model, whose steps are short and whose vocabulary is
small; and on one with random weights and a vocabulary of 128k. A ratio of 0.9 or more is wanted at 32.

A ratio says that something is lost, the shares say where: `waves` and `rows` in small waves, `worker_us` in masks,
`control_us` and `hosts_us` (with the guests) in calls, `ends` in texts that end at different moments.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from pie_control.client import Client
from pie_control.client.running import Running

from ..plans import refuse_unknown
from ..support.guests import launch_many, source
from ..support.models.random_models import LLAMA_128K, model_folder
from ..support.processes import processor_seconds
from ..support.samples import median, percentile
from ..support.server import Server, scheduler_counts, serving

DEMO = "demo"
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
    """For each of `models` and number of `inferlets`, `pairs` of turns of `tokens` tokens each. `tree`: the tree to
    serve from, if not this one."""

    models: tuple[str, ...]
    inferlets: tuple[int, ...]
    tokens: int
    pairs: int
    tree: Path | None = None

    def __post_init__(self) -> None:
        refuse_unknown("model", self.models, MODELS)


FULL = Plan(MODELS, (1, 8, 32), tokens=200, pairs=9)
QUICK = Plan(MODELS, (32,), tokens=100, pairs=5)


@dataclass(frozen=True)
class Row:
    """`ratio` is the median of the pairs' ratios of tokens a second, kept over free; a quarter of them is below `low`,
    a quarter above `high`. `work`: the same of the processor time of all processes for a token, free over kept, which
    others on the machine change less. All else are medians over the turns of free and of kept texts.

    `tokens_s`: tokens of all inferlets a second, from when they are told to begin until the last has its text.
    `steps`: tokens that the worker sampled for each token; others were forced and run together. `waves`: of a turn;
    `rows`: that were sampled in each, in the mean. `busy`: part of the time in which the worker had a wave. `ends`:
    part of the time in which some had their texts already. `worker_us`, `control_us`, `hosts_us`: processor time for a
    token, by process."""

    model: str
    inferlets: int
    ratio: float
    low: float
    high: float
    work: float
    free_tokens_s: float
    kept_tokens_s: float
    free_steps: float
    kept_steps: float
    free_waves: float
    kept_waves: float
    free_rows: float
    kept_rows: float
    free_busy: float
    kept_busy: float
    free_ends: float
    kept_ends: float
    free_worker_us: float
    kept_worker_us: float
    free_control_us: float
    kept_control_us: float
    free_hosts_us: float
    kept_hosts_us: float


async def run(plan: Plan) -> list[Row]:
    """One row for each model and number of inferlets."""
    return [row for model in plan.models for row in await _measure_model(model, plan)]


@dataclass(frozen=True)
class _Turn:
    """What `Row` says of the turns of one kind."""

    tokens_s: float
    steps: float
    waves: float
    rows: float
    busy: float
    ends: float
    worker_us: float
    control_us: float
    hosts_us: float

    @property
    def processor_us(self) -> float:
        return self.worker_us + self.control_us + self.hosts_us


class _Pair(NamedTuple):
    free: _Turn
    kept: _Turn


async def _measure_model(name: str, plan: Plan) -> list[Row]:
    folder = model_folder(name)
    settings: dict[str, Any] = {"model": folder, "device": "cpu", "pages": 2048}
    async with serving(tree=plan.tree, **settings) as server, Client(server.url) as client:
        measured = _Measured(server, client, await client.upload(source("constrained"), "constrained"))
        return [await measured.row(name, inferlets, plan) for inferlets in plan.inferlets]


class _Snapshot(NamedTuple):
    """What the server has counted so far, and the processor time that its parts have used."""

    counts: Mapping[str, Any]
    processor: Mapping[str, float]

    def since(self, before: _Snapshot, count: int, seconds: float, ends: float) -> _Turn:
        """The turn between, of `count` tokens in `seconds` seconds."""

        def command(name: str, of: str) -> int:
            return int(self.counts[of].get(name, 0) - before.counts[of].get(name, 0))

        def part(name: str) -> float:
            return 1e6 * (self.processor.get(name, 0.0) - before.processor.get(name, 0.0)) / count

        sampled, batches = command("sample", "commands"), command("sample", "batches")
        return _Turn(
            tokens_s=count / seconds,
            steps=sampled / count,
            waves=self.counts["waves"] - before.counts["waves"],
            rows=sampled / batches,
            busy=(self.counts["worker_seconds"] - before.counts["worker_seconds"]) / seconds,
            ends=ends,
            worker_us=part("worker"),
            control_us=part("control"),
            hosts_us=part("hosts"),
        )


class _Measured:
    """A server that is measured."""

    def __init__(self, server: Server, client: Client, program: str) -> None:
        self._server, self._client, self._program = server, client, program

    async def row(self, model: str, inferlets: int, plan: Plan) -> Row:
        await self._pair(inferlets, WARM_UP_TOKENS, kept_first=False)
        pairs = [await self._pair(inferlets, plan.tokens, kept_first=bool(n % 2)) for n in range(plan.pairs)]
        ratios = [pair.kept.tokens_s / pair.free.tokens_s for pair in pairs]
        work = median([pair.free.processor_us / pair.kept.processor_us for pair in pairs])
        low, middle, high = (percentile(ratios, percent) for percent in (25, 50, 75))
        print(
            f"{model}, {inferlets} at once: {middle:.2f} ({low:.2f} to {high:.2f}), by processor time {work:.2f}",
            file=sys.stderr,
            flush=True,
        )
        sides = {"free": [pair.free for pair in pairs], "kept": [pair.kept for pair in pairs]}
        middles = {f"{side}_{name}": value for side, turns in sides.items() for name, value in _medians(turns).items()}
        rounded = (round(value, 3) for value in (middle, low, high, work))
        return Row(model, inferlets, *rounded, **middles)

    async def _pair(self, inferlets: int, tokens: int, kept_first: bool) -> _Pair:
        """A turn of free texts, and one of texts that are kept to the schema."""
        schema = json.dumps(SCHEMA)
        if kept_first:
            kept = await self._turn(inferlets, tokens, schema)
            return _Pair(await self._turn(inferlets, tokens, ""), kept)
        return _Pair(await self._turn(inferlets, tokens, ""), await self._turn(inferlets, tokens, schema))

    async def _turn(self, inferlets: int, tokens: int, schema: str) -> _Turn:
        arguments = f"prompt={PROMPT.format(number=inferlets)}", f"max_tokens={tokens}", f"schema={schema}"
        running = await launch_many(self._client, self._program, inferlets, *arguments)
        await asyncio.gather(*(one.receive() for one in running))  # all prompts are in the cache
        before, start = await self._snapshot(), time.perf_counter()
        await asyncio.gather(*(one.send("go") for one in running))
        results = await asyncio.gather(*(_result(one) for one in running))
        ends = [end - start for _, end in results]
        after = await self._snapshot()
        counts = {count for count, _ in results}
        if counts != {tokens}:
            raise RuntimeError(f"{inferlets} inferlets gave {sorted(counts)} tokens instead of {tokens} each")
        return after.since(before, inferlets * tokens, max(ends), 1 - min(ends) / max(ends))

    async def _snapshot(self) -> _Snapshot:
        return _Snapshot(scheduler_counts(await self._client.statistics()), processor_seconds(self._server.pid))


async def _result(one: Running) -> tuple[int, float]:
    """The tokens of an inferlet, and when it had them."""
    result = await one.result()
    return result["tokens"], time.perf_counter()


def _medians(turns: Sequence[_Turn]) -> dict[str, float]:
    names = [field.name for field in fields(_Turn)]
    return {name: round(median([getattr(turn, name) for turn in turns]), 3) for name in names}
