"""Is `closed`, the opponent without programs, as fast as its worker in a tight loop?

The same work as in `tpot`: prompts of other tokens for each sequence, and then tokens that are streamed to an HTTP
client. The time is that of a token while all streams run, as all sequences of the closed loop do: from when the last
one has begun to when the first one ends. So prompts, of which a cache of prefixes leaves the last page, do not count.
The closed loop (a worker in this process; beside a paced one, what the pace says) and the server take turns on the same
prompts, with the same worker settings. `overhead` is the median of the rounds' ratios, minus one: above 0.03, `closed`
is no opponent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pie_inference.config import WorkerConfig
from pie_inference.options.pace import parse_pace

from ..control.tpot import DEMO, PAGES, WARM_UP_TOKENS, make_prompts
from ..report import noted
from ..support.closed_loop import ClosedLoop, PacedLoop
from ..support.models.random_models import LLAMA_160M
from ..support.samples import median, together
from ..support.server import CLOSED, serving
from .client import CompletionClient
from .sides import PACED, check_models, checkpoint_of, settings_of


@dataclass(frozen=True)
class Plan:
    """Prompts have `prompt` tokens, and `tokens` tokens are generated. Closed loop and server take `rounds` turns."""

    models: tuple[str, ...]
    concurrent: tuple[int, ...]
    prompt: int
    tokens: int
    rounds: int

    def __post_init__(self) -> None:
        check_models(self.models)


FULL = Plan((DEMO, LLAMA_160M, "paced:5ms+20us"), (1, 8, 32), prompt=64, tokens=192, rounds=5)
QUICK = Plan((DEMO,), (8,), prompt=64, tokens=192, rounds=3)


@dataclass(frozen=True)
class Row:
    """Medians over the rounds, in milliseconds. `same_tokens`: both sides gave the same tokens in every round."""

    model: str
    dtype: str
    threads: int
    concurrent: int
    closed_loop_ms: float
    closed_ms: float
    overhead: float
    same_tokens: bool


async def run(plan: Plan) -> list[Row]:
    """One row for each model and number of sequences."""
    return [row for model in plan.models for row in await _measure_model(model, plan)]


async def _measure_model(name: str, plan: Plan) -> list[Row]:
    if name.startswith(PACED):
        loop: ClosedLoop = PacedLoop(name, parse_pace(name.removeprefix(PACED)))
    else:
        loop = ClosedLoop(WorkerConfig(checkpoint_of(name), name, pages=PAGES))
    settings: dict[str, Any] = {**settings_of(name), "pages": PAGES, "threads": loop.threads}
    async with serving(CLOSED, **settings) as server, CompletionClient(server.url) as client:
        return [await _compare(loop, client, concurrent, plan) for concurrent in plan.concurrent]


async def _compare(loop: ClosedLoop, client: CompletionClient, concurrent: int, plan: Plan) -> Row:
    prompts = make_prompts(concurrent, plan.prompt, loop.description)
    await run_server(client, prompts, WARM_UP_TOKENS)
    loop.generate(prompts, WARM_UP_TOKENS)
    loops, servers, same = [], [], True
    for _ in range(plan.rounds):
        closed = await asyncio.to_thread(loop.generate, prompts, plan.tokens)
        tokens, times = await run_server(client, prompts, plan.tokens)
        loops.append(1e3 * closed.seconds_per_token)
        servers.append(1e3 * together(times))
        same = same and tokens == closed.tokens.tolist()
    ratios = [server / one for server, one in zip(servers, loops, strict=True)]
    row = Row(
        model=loop.description.name,
        dtype=loop.description.dtype,
        threads=loop.threads,
        concurrent=concurrent,
        closed_loop_ms=round(median(loops), 3),
        closed_ms=round(median(servers), 3),
        overhead=round(median(ratios) - 1, 3),
        same_tokens=same,
    )
    return noted(row)


async def run_server(
    client: CompletionClient, prompts: Sequence[Sequence[int]], count: int
) -> tuple[list[list[int]], list[list[float]]]:
    """The tokens of each stream, and when they came."""

    async def stream(prompt: Sequence[int]) -> tuple[list[int], list[float]]:
        tokens, times = [], []
        asked: dict[str, Any] = {"max_tokens": count, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        async for event in client.stream(prompt=prompt, **asked):
            times.append(time.perf_counter())
            tokens += event["choices"][0]["token_ids"]
        return tokens, times

    streams = await asyncio.gather(*(stream(prompt) for prompt in prompts))
    return [tokens for tokens, _ in streams], [times for _, times in streams]
