"""What does the programming model cost, part by part (Table 3)?

The same greedy tokens of `concurrent` sequences, in five ways, each of which has one part more: a worker in a tight
loop; `closed`, a server without programs, which adds the way to the worker, batching and the way to the client; a
program that makes one call for all tokens, which adds the control layer, hosts and the sandbox; a call for each token,
made when the one before is known, so that nothing is pipelined; and the distribution of each token, from which the
program chooses. The time of each is that of a token while all sequences run, and programs send each piece of their
texts. All take a turn in each round. A part is the median over the rounds of the difference to the way before, the
whole that of the last way to the first; `sum` is the parts over the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pie_control.client import Client
from pie_inference.config import WorkerConfig

from ..control.tpot import DEMO, MODELS, PAGES, WARM_UP_TOKENS, make_prompts
from ..opponents.client import CompletionClient
from ..opponents.closed_tpot import run_server
from ..plans import refuse_unknown
from ..support.closed_loop import ClosedLoop
from ..support.generation import run_inferlets
from ..support.guests import source
from ..support.models.random_models import LLAMA_160M, model_folder
from ..support.samples import median, together
from ..support.server import CLOSED, serving

LOOP, SERVER, RUN = "closed loop", "server without programs", "one call"
STEPS, DISTS = "a call a token", "distributions"
PAPER = {LOOP: 0.0, SERVER: 0.056, RUN: 0.001, STEPS: 1.39, DISTS: 0.07}
"""Milliseconds beside 64.06, of an 8B model: lack of pipelined sampling and of embedding (STEPS); scheduling, and the
way between control and inference layer (SERVER); returning distributions; the way between application and control
layer (RUN)."""
WHOLE = "whole"
PAPER_WHOLE = 1.53


@dataclass(frozen=True)
class Plan:
    """Prompts have `prompt` tokens, and `tokens` tokens are generated."""

    models: tuple[str, ...]
    concurrent: int
    prompt: int
    tokens: int
    rounds: int

    def __post_init__(self) -> None:
        refuse_unknown("model", self.models, MODELS)


FULL = Plan((DEMO, LLAMA_160M), concurrent=32, prompt=64, tokens=96, rounds=7)
QUICK = Plan((DEMO,), concurrent=8, prompt=64, tokens=96, rounds=3)


@dataclass(frozen=True)
class Row:
    """`tpot_ms`: of this way; `added_ms`: what its part adds, and in the row `whole` all parts; `share`: of the closed
    loop's time; `sum`: all parts over the whole, to be within 0.1 of 1."""

    model: str
    way: str
    tpot_ms: float
    added_ms: float
    share: float
    sum: float | None
    paper_added_ms: float


Turn = Callable[[int], Awaitable[float]]
"""Generates so many tokens; milliseconds for a token of all sequences."""


async def run(plan: Plan) -> list[Row]:
    """Rows for each model."""
    return [row for model in plan.models for row in await _measure(model, plan)]


async def _measure(model: str, plan: Plan) -> list[Row]:
    folder = model_folder(model)
    loop = ClosedLoop(WorkerConfig(folder, model, pages=PAGES))
    settings: dict[str, Any] = {"model": f"{model}={folder}", "pages": PAGES, "threads": loop.threads}
    async with (
        serving(**settings) as pie,
        serving(CLOSED, **settings) as closed,
        Client(pie.url) as client,
        CompletionClient(closed.url) as completions,
    ):
        ways = await _ways(plan, loop, client, completions)
        for turn in ways.values():
            await turn(WARM_UP_TOKENS)
        rounds = [[await turn(plan.tokens) for turn in ways.values()] for _ in range(plan.rounds)]
    return rows_of(model, list(ways), rounds)


async def _ways(plan: Plan, loop: ClosedLoop, client: Client, completions: CompletionClient) -> dict[str, Turn]:
    prompts = make_prompts(plan.concurrent, plan.prompt, loop.description)

    async def in_loop(tokens: int) -> float:
        return 1e3 * (await asyncio.to_thread(loop.generate, prompts, tokens)).seconds_per_token

    async def at_server(tokens: int) -> float:
        _, times = await run_server(completions, prompts, tokens)
        return 1e3 * together(times) if tokens == plan.tokens else 0.0  # a warm-up is too short to tell

    uploaded = await client.upload(source("generate"), "generate")

    def program(way: str) -> Turn:
        async def turn(tokens: int) -> float:
            return (await run_inferlets(client, uploaded, prompts, tokens, f"--way={way}")).per_token

        return turn

    return {LOOP: in_loop, SERVER: at_server, RUN: program("run"), STEPS: program("steps"), DISTS: program("dists")}


def rows_of(model: str, ways: list[str], rounds: list[list[float]]) -> list[Row]:
    times = [median(one) for one in zip(*rounds, strict=True)]
    parts = [median([one[place] - one[place - 1] for one in rounds]) for place in range(1, len(ways))]
    whole = median([one[-1] - one[0] for one in rounds])
    rows = [
        Row(model, way, round(time, 3), round(part, 3), round(part / times[0], 3), None, PAPER[way])
        for way, time, part in zip(ways, times, [0.0, *parts], strict=True)
    ]
    added = round(sum(parts) / whole, 3) if whole else None
    return [*rows, Row(model, WHOLE, rows[-1].tpot_ms, round(whole, 3), round(whole / times[0], 3), added, PAPER_WHOLE)]
