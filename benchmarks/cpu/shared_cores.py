"""How much of a decode wave's speed stays when other processes compute on the same cores?

The whole system runs a model of a billion parameters, quiet and beside busy processes, in turns. With fair shares of
two cores, a wave would keep 2/3 of its speed beside one of them, and 1/2 beside two.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from ..support.models.large_model import LargeModel, ServedModel, served
from ..support.models.random_models import LLAMA_1B, LLAMA_TINY
from ..support.samples import median

QUIET = 0
SPIN = "while True: pass"


@dataclass(frozen=True, kw_only=True)
class Plan(ServedModel):
    """`concurrent` sequences generate `tokens` tokens behind prompts of `prompt` tokens, quiet and beside each number
    of `busy` processes, in each of `rounds` rounds. The other options are as in `decode`."""

    busy: tuple[int, ...]
    concurrent: int
    prompt: int
    tokens: int
    rounds: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.busy:
            raise ValueError("--busy: give numbers of busy processes; quiet runs are always there")


FULL = Plan(model=LLAMA_1B, pages=2048, busy=(1, 2), concurrent=16, prompt=128, tokens=64, rounds=5)
QUICK = Plan(model=LLAMA_TINY, pages=256, busy=(1, 2), concurrent=16, prompt=32, tokens=32, rounds=2)


@dataclass(frozen=True)
class Row:
    """`ms`: a wave by the worker's own count. `quiet_over_ms`: the quiet run's time over this one's; 1 if the busy
    processes take nothing. Medians over the rounds. `batch`: average number of sequences in a wave."""

    busy: int
    concurrent: int
    ms: float
    quiet_over_ms: float
    batch: float


@dataclass(frozen=True)
class _Run:
    ms: float
    batch: float


async def run(plan: Plan) -> list[Row]:
    """Returns one row for the quiet runs, and one for each number of busy processes."""
    numbers = (QUIET, *plan.busy)
    async with served(plan) as model:
        await model.warm_up(plan.concurrent)
        rounds = [{busy: await _generate(model, busy, plan) for busy in numbers} for _ in range(plan.rounds)]
    return [_row(busy, rounds, plan) for busy in numbers]


async def _generate(model: LargeModel, busy: int, plan: Plan) -> _Run:
    with _spinning(busy):
        waves = (await model.generate(model.new_prompts(plan.concurrent, plan.prompt), plan.tokens)).waves
    return _Run(waves.worker, waves.batch)


@contextlib.contextmanager
def _spinning(count: int) -> Iterator[None]:
    """Processes that use as much of a core as they get."""
    processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _row(busy: int, rounds: list[dict[int, _Run]], plan: Plan) -> Row:
    ms = median([runs[busy].ms for runs in rounds])
    ratio = median([runs[QUIET].ms / runs[busy].ms for runs in rounds])
    batch = median([runs[busy].batch for runs in rounds])
    return Row(busy, plan.concurrent, round(ms, 3), round(ratio, 3), round(batch, 1))
