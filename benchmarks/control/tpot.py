"""What is the time per output token of concurrent inferlets, against the same worker driven directly?

Each inferlet fills a prompt. Once all have done so, they stream greedy tokens to the client through its session: by
`stream` the program reads each piece of text and sends it, by `piped` it sleeps while the text goes to the client. The
time runs from the first message of any inferlet at the client to the last one of any, divided by the tokens that an
inferlet sends between: so those that begin later, and the rest that then end alone, count. The closed loop (a worker in
this process) and Pie take turns in one run, on the same prompts, with the same worker settings; one is idle
while the other runs. `overhead` is the median of the rounds' ratios, minus one; `own_overhead` the same of the time per
token of an inferlet while all run, as all sequences of the closed loop do. On few cores the closed loop has an
advantage: nothing else needs the processor.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pie_control.client import Client
from pie_control.config import SHIPPED
from pie_control.services.tokenizer import Tokenizer
from pie_inference.config import WorkerConfig
from pie_inference.protocol import ModelDescription

from ..plans import refuse_unknown
from ..report import noted
from ..support.closed_loop import ClosedLoop
from ..support.closed_loop import Generated as ClosedRun
from ..support.generation import Generated, run_inferlets
from ..support.guests import source
from ..support.models.random_models import LLAMA_1B, LLAMA_160M, model_folder
from ..support.samples import median
from ..support.server import serving

DEMO = "demo"
MODELS = (*SHIPPED, LLAMA_160M, LLAMA_1B)
PROGRAMS: dict[str, tuple[str, ...]] = {"stream": (), "piped": ("--way=piped",)}
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
    """Prompts have `prompt` tokens, and `tokens` tokens are generated. Closed loop and Pie take `rounds` turns each,
    and more until `seconds` have passed. `tree`: the tree to serve from, if not this one; the closed loop is always
    this tree's."""

    models: tuple[str, ...]
    programs: tuple[str, ...]
    concurrent: tuple[int, ...]
    prompt: int
    tokens: int
    rounds: int
    seconds: float = 0.0
    tree: Path | None = None

    def __post_init__(self) -> None:
        refuse_unknown("model", self.models, MODELS)
        refuse_unknown("program", self.programs, tuple(PROGRAMS))


FULL = Plan((DEMO, LLAMA_160M), ("stream", "piped"), (1, 8, 32), prompt=64, tokens=64, rounds=3)
QUICK = Plan((DEMO, LLAMA_160M), ("stream",), (1, 8), prompt=64, tokens=16, rounds=2)


@dataclass(frozen=True)
class Row:
    """Medians over `rounds` rounds. `own_ms`: the median inferlet's time per token, from when the last one has its
    first text to when the first one has its last. `batch`: average number of tokens in a Sample batch of Pie;
    `worker_ms`: the worker's time per wave; `guest_ms`: time inside inferlets per wave. `same_tokens`: both sides gave
    the same tokens in every round.
    """

    model: str
    dtype: str
    threads: int
    program: str
    concurrent: int
    closed_loop_ms: float
    pie_ms: float
    overhead: float
    own_ms: float
    own_overhead: float
    rounds: int
    same_tokens: bool
    batch: float
    worker_ms: float
    guest_ms: float


@dataclass(frozen=True)
class _Turns:
    """The results of one turn of each side."""

    closed: ClosedRun
    pie: Generated

    @property
    def closed_ms(self) -> float:
        return 1e3 * self.closed.seconds_per_token

    @property
    def same_tokens(self) -> bool:
        return bool(self.closed.tokens.tolist() == self.pie.tokens)


async def run(plan: Plan) -> list[Row]:
    """One row for each model, program and number of inferlets."""
    return [row for model in plan.models for row in await _measure_model(model, plan)]


async def _measure_model(name: str, plan: Plan) -> list[Row]:
    folder = model_folder(name)
    loop = ClosedLoop(WorkerConfig(folder, name, pages=PAGES))
    settings: dict[str, Any] = {"model": folder, "pages": PAGES, "threads": loop.threads}
    async with serving(tree=plan.tree, **settings) as server, Client(server.url) as client:
        uploaded = await client.upload(source("generate"), "generate")
        return [
            await _compare(loop, client, uploaded, program, concurrent, plan)
            for program in plan.programs
            for concurrent in plan.concurrent
        ]


async def _compare(loop: ClosedLoop, client: Client, uploaded: str, program: str, concurrent: int, plan: Plan) -> Row:
    prompts = make_prompts(concurrent, plan.prompt, loop.description)
    counter = tokenizer_of(loop.description) if program == "piped" else None

    async def turns(tokens: int) -> _Turns:
        """A turn of the closed loop, then one of Pie. In both, the prompts run one after the other."""
        closed = await asyncio.to_thread(loop.generate, prompts, tokens)
        pie = await run_inferlets(client, uploaded, prompts, tokens, *PROGRAMS[program], tokenizer=counter)
        return _Turns(closed, pie)

    await turns(WARM_UP_TOKENS)
    rounds: list[_Turns] = []
    start = time.perf_counter()
    while len(rounds) < plan.rounds or time.perf_counter() - start < plan.seconds:
        rounds.append(await turns(plan.tokens))
    row = Row(
        model=loop.description.name,
        dtype=loop.description.dtype,
        threads=loop.threads,
        program=program,
        concurrent=concurrent,
        closed_loop_ms=round(median([one.closed_ms for one in rounds]), 3),
        pie_ms=round(median([one.pie.in_all for one in rounds]), 3),
        overhead=round(median([one.pie.in_all / one.closed_ms for one in rounds]) - 1, 3),
        own_ms=round(median([one.pie.per_token for one in rounds]), 3),
        own_overhead=round(median([one.pie.per_token / one.closed_ms for one in rounds]) - 1, 3),
        rounds=len(rounds),
        same_tokens=all(one.same_tokens for one in rounds),
        batch=round(median([one.pie.waves.batch for one in rounds]), 2),
        worker_ms=round(median([one.pie.waves.worker for one in rounds]), 3),
        guest_ms=round(median([one.pie.waves.guest for one in rounds]), 3),
    )
    return noted(row)


def make_prompts(count: int, length: int, model: ModelDescription) -> list[list[int]]:
    """The beginnings of different stories, `length` tokens each."""
    tokenizer = tokenizer_of(model)
    heroes = itertools.islice(itertools.product(NAMES, ANIMALS), count)
    return [tokenizer.encode(STORY.format(name=name, animal=animal))[:length] for name, animal in heroes]


def tokenizer_of(model: ModelDescription) -> Tokenizer:
    return Tokenizer(model.tokenizer, model.tokenizer_config, model.vocab_size)
