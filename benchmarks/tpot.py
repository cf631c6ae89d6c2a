"""Time per output token of concurrent inferlets, against the closed loop: the same worker driven directly.

Each inferlet fills a prompt and, when all have done so, streams greedy tokens to the client through its session. The
time counts from its first to its last message at the client, divided by the tokens between. Closed loop and Pie take
turns in one run, on the same prompts, with the same worker settings, one idle while the other runs; `overhead` is the
median of the ratios of the rounds, less one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pie_control.client import Client
from pie_control.client.running import Running
from pie_control.config import ServerConfig
from pie_control.tokenizer import Tokenizer
from pie_inference.config import WorkerConfig
from pie_inference.protocol import ModelDescription

from .checkpoint import NAME as RANDOM
from .checkpoint import random_160m
from .closed_loop import ClosedLoop
from .guests import launch_many, source
from .samples import median
from .server import serving

DEMO = "demo"
PAGES = 2048
WARM_UP_TOKENS = 8
NAMES = ("Tom", "Anna", "Ben", "Lily", "Max", "Sue", "Sam", "Mia")
ANIMALS = ("cat", "dog", "fox", "hen")
STORY = (
    "{name} had a small {animal}. Every day {name} and the {animal} walked to the river and looked at the boats. One "
    "day the {animal} was not at home. {name} looked in the garden and behind the house, and then {name} ran to the "
    "river to look for the {animal}. There was a boat on the river, and in the boat"
)


@dataclass(frozen=True)
class Plan:
    """Sequences have `prompt` and `tokens` tokens; closed loop and Pie take `rounds` turns each."""

    models: tuple[str, ...]
    concurrent: tuple[int, ...]
    prompt: int
    tokens: int
    rounds: int


FULL = Plan((DEMO, RANDOM), (1, 8, 32), prompt=64, tokens=64, rounds=3)
QUICK = Plan((DEMO, RANDOM), (1, 8), prompt=64, tokens=16, rounds=2)


@dataclass(frozen=True)
class Row:
    """Medians over the rounds. `batch`: tokens in a Sample batch of Pie's, on average; `worker_ms`: of a wave;
    `guest_ms`: time inside inferlets per wave. `same_tokens`: both sides gave the same in every round.
    """

    model: str
    dtype: str
    threads: int
    concurrent: int
    closed_loop_ms: float
    pie_ms: float
    overhead: float
    same_tokens: bool
    batch: float
    worker_ms: float
    guest_ms: float


@dataclass(frozen=True)
class _Run:
    """One turn of one side; times in milliseconds."""

    tokens: list[list[int]]
    per_token: float
    batch: float = 0.0
    worker: float = 0.0
    guest: float = 0.0


async def run(plan: Plan) -> list[Row]:
    """One row for each model and number of inferlets."""
    return [row for model in plan.models for row in await _measure_model(model, plan)]


async def _measure_model(name: str, plan: Plan) -> list[Row]:
    folder = random_160m() if name == RANDOM else Path(ServerConfig().resolved().model)
    loop = ClosedLoop(WorkerConfig(folder, name, pages=PAGES))
    settings = {"model": folder, "model_name": name, "pages": PAGES, "threads": loop.threads}
    async with serving(**settings) as server, Client(server.url) as client:
        program = await client.upload(source("generate"), "generate")
        return [await _compare(loop, client, program, concurrent, plan) for concurrent in plan.concurrent]


async def _compare(loop: ClosedLoop, client: Client, program: str, concurrent: int, plan: Plan) -> Row:
    prompts = _prompts(concurrent, plan.prompt, loop.description)
    await _turns(loop, client, program, prompts, WARM_UP_TOKENS)
    pairs = [await _turns(loop, client, program, prompts, plan.tokens) for _ in range(plan.rounds)]
    closed, pie = zip(*pairs, strict=True)
    return Row(
        model=loop.description.name,
        dtype=loop.description.dtype,
        threads=loop.threads,
        concurrent=concurrent,
        closed_loop_ms=round(median([one.per_token for one in closed]), 3),
        pie_ms=round(median([one.per_token for one in pie]), 3),
        overhead=round(median([theirs.per_token / ours.per_token for ours, theirs in pairs]) - 1, 3),
        same_tokens=all(ours.tokens == theirs.tokens for ours, theirs in pairs),
        batch=round(median([one.batch for one in pie]), 2),
        worker_ms=round(median([one.worker for one in pie]), 3),
        guest_ms=round(median([one.guest for one in pie]), 3),
    )


async def _turns(
    loop: ClosedLoop, client: Client, program: str, prompts: Sequence[Sequence[int]], tokens: int
) -> tuple[_Run, _Run]:
    """A turn of the closed loop, then one of Pie."""
    closed = await asyncio.to_thread(_run_closed_loop, loop, prompts, tokens)
    return closed, await _run_pie(client, program, prompts, tokens)


def _prompts(count: int, length: int, model: ModelDescription) -> list[list[int]]:
    """The beginnings of different stories, `length` tokens each."""
    tokenizer = Tokenizer(model.tokenizer, model.tokenizer_config, model.vocab_size)
    heroes = itertools.islice(itertools.product(NAMES, ANIMALS), count)
    return [tokenizer.encode(STORY.format(name=name, animal=animal))[:length] for name, animal in heroes]


def _run_closed_loop(loop: ClosedLoop, prompts: Sequence[Sequence[int]], tokens: int) -> _Run:
    generated = loop.generate(prompts, tokens)
    return _Run(generated.tokens.tolist(), 1e3 * generated.seconds_per_token)


async def _run_pie(client: Client, program: str, prompts: Sequence[Sequence[int]], tokens: int) -> _Run:
    running = await launch_many(client, program, len(prompts), str(tokens))
    for one, prompt in zip(running, prompts, strict=True):
        await one.send(json.dumps(prompt))
        await one.receive()  # the prompts run one after the other, as in the closed loop
    before = await client.statistics()
    streamed = await asyncio.gather(*(_stream(one) for one in running))
    after = await client.statistics()
    timed = [one.per_token for one in streamed if not math.isnan(one.per_token)]
    if not timed:
        raise RuntimeError("the model gave special tokens only, behind every prompt: there is nothing to time")
    return _Run([one.tokens for one in streamed], median(timed), **_waves(before, after))


@dataclass(frozen=True)
class _Stream:
    """What a client saw of one inferlet."""

    tokens: list[int]
    per_token: float  # milliseconds; not a number if the model gave special tokens only, which have no text


async def _stream(running: Running) -> _Stream:
    go = asyncio.create_task(running.send("go"))
    times = [time.perf_counter() async for _ in running]
    await go
    result = await running.result()
    counts = result["counts"]
    between = counts[-1] - counts[0]
    return _Stream(result["tokens"], 1e3 * (times[-1] - times[0]) / between if between else math.nan)


def _waves(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """What the waves of one turn were like."""

    def grown(*path: str) -> float:
        old: Any = before
        new: Any = after
        for name in path:
            old, new = old.get(name, 0), new[name]
        return float(new - old)

    model = ("models", next(iter(after["models"])))
    waves = grown(*model, "waves")
    return {
        "batch": grown(*model, "commands", "sample") / grown(*model, "batches", "sample"),
        "worker": 1e3 * grown(*model, "worker_seconds") / waves,
        "guest": 1e3 * grown("inferlets", "runner", "guest_seconds") / waves,
    }
