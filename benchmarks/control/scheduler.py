"""What does the scheduler itself cost in decode steps of many inferlets?

No sandbox, no event loop, no socket, and a worker that answers at once: the calls that `host_api` and `models` make, in
their order. A step of an inferlet is `embed_txt`, `forward` and `sample`; the steps of all inferlets go into one wave.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pie_control.scheduling import Account, Adaptive, SamplingParams, Scheduler
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import RunWave, Sample, SampleResult, WaveDone

from ..support.samples import median

GREEDY = SamplingParams(temperature=0.0)
PAGES = 16
QUEUE = 1
INPUT, OUTPUT = (0, 1), (1, 1)  # ranges of embeds
TOKEN = 65


@dataclass(frozen=True)
class Plan:
    """Numbers of inferlets, and how many steps each makes."""

    inferlets: tuple[int, ...]
    steps: int


FULL = Plan((1, 8, 32, 128), steps=200)
QUICK = Plan((1, 8, 32), steps=60)


@dataclass(frozen=True)
class Row:
    """Medians over the steps. `issue_us`: an inferlet's three commands; `form_us`: the wave of all of them;
    `done_us`: taking the worker's answer to it. `us_each`: all of that for one inferlet.
    """

    inferlets: int
    issue_us: float
    form_us: float
    done_us: float
    us_each: float


async def run(plan: Plan) -> list[Row]:
    """One row for each number of inferlets."""
    return [_measure(number, plan.steps) for number in plan.inferlets]


def _measure(number: int, steps: int) -> Row:
    model = FakeModel(num_pages=number * PAGES + 64, num_embeds=2 * number).describe()[0]
    scheduler = Scheduler(model, Adaptive())
    accounts = [_open(scheduler, owner) for owner in range(number)]
    times = [_step(scheduler, accounts, position) for position in range(steps + 1)][1:]
    issue, form, done = (1e6 * median(column) for column in zip(*times, strict=True))
    return Row(number, *(round(us, 2) for us in (issue / number, form, done, (issue + form + done) / number)))


def _open(scheduler: Scheduler, owner: int) -> Account:
    account = scheduler.open(owner, float(owner))
    account.create_queue()
    account.alloc_kvpage(QUEUE, PAGES, 0.0)
    account.alloc_emb(QUEUE, 2, 0.0)
    return account


def _step(scheduler: Scheduler, accounts: list[Account], position: int) -> tuple[float, float, float]:
    """Seconds to issue, form and finish one step of all."""
    issued = _timed(lambda: _issue(accounts, position))
    waves: list[RunWave | None] = []
    formed = _timed(lambda: waves.append(scheduler.next_wave(0.0)))
    wave = waves[0]
    assert wave is not None, "commands wait"
    answer = _answer(wave)
    return issued, formed, _timed(lambda: scheduler.wave_done(answer, 0.0))


def _issue(accounts: list[Account], position: int) -> None:
    for account in accounts:
        account.embed_txt(QUEUE, [TOKEN], [position], INPUT, 0.0)
        account.forward(QUEUE, (0, PAGES), INPUT, (0, PAGES), OUTPUT, 0.0)
        account.sample(QUEUE, OUTPUT[0], GREEDY, 0.0, position, 0.0)


def _answer(wave: RunWave) -> WaveDone:
    """Token TOKEN for everyone."""
    results = [
        SampleResult(np.full(len(batch.embeds), TOKEN, np.int32)) if isinstance(batch, Sample) else None
        for batch in wave.batches
    ]
    return WaveDone(wave.wave, tuple(results), 0.0)


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
