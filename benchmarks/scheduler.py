"""What the scheduler itself costs: decode steps of many inferlets, with a worker that answers at once.

No sandbox, no event loop, no socket: the calls that `host_api` makes and the turns that `engine` takes. A step of an
inferlet is `embed_txt`, `forward` and `sample`; the steps of all inferlets go into one wave.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pie_control.calls.allocate import alloc_emb, alloc_kvpage
from pie_control.calls.core import create_queue
from pie_control.calls.forward import forward
from pie_control.calls.fused import sample
from pie_control.calls.input_text import embed_txt
from pie_control.calls.sampler import Sampler, SamplingParams
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.quotas import Quota
from pie_control.scheduling import Adaptive, Event, Opened, Quiet, Scheduler, Turn
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import ModelDescription, RunWave, Sample, SampleResult, WaveDone

from .samples import median

GREEDY = Sampler(SamplingParams(temperature=0.0), 0)
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
    """Medians over the steps. `issue_us`: an inferlet's three commands; `form_us`: the turn that takes them and forms
    the wave of all; `done_us`: the turn that takes the worker's answer to it; both with what is told to address spaces.
    `us_each`: all of that for one inferlet."""

    inferlets: int
    issue_us: float
    form_us: float
    done_us: float
    us_each: float


async def run(plan: Plan) -> list[Row]:
    """One row for each number of inferlets."""
    return [_measure(number, plan.steps) for number in plan.inferlets]


def _measure(number: int, steps: int) -> Row:
    bench = _Bench(FakeModel(num_pages=number * PAGES + 64, num_embeds=2 * number).describe()[0])
    for owner in range(number):
        bench.open(owner)
    times = [_step(bench, position) for position in range(steps + 1)][1:]
    issue, form, done = (1e6 * median(column) for column in zip(*times, strict=True))
    return Row(number, *(round(us, 2) for us in (issue / number, form, done, (issue + form + done) / number)))


class _Bench:
    """A scheduler and address spaces."""

    def __init__(self, model: ModelDescription) -> None:
        self.spaces: dict[int, AddressSpace] = {}
        self._model = model
        self._scheduler = Scheduler(model, Adaptive())
        self._events: list[Event] = []

    def open(self, owner: int) -> None:
        space = self.spaces[owner] = AddressSpace(owner, self._model, Quota(), self._events.append)
        self._events.append(Opened(owner, float(owner)))
        create_queue.issue(space, QUEUE)
        alloc_kvpage.issue(space, QUEUE, PAGES)
        alloc_emb.issue(space, QUEUE, 2)

    def turn(self, event: Event) -> Turn:
        """A turn, told to whom it concerns."""
        self._events.append(event)
        turn = self._scheduler.turn(0.0, self._events)
        self._events.clear()
        for progress in turn.progress:
            self.spaces[progress.owner].progressed(progress.oldest, progress.taken)
        for completion in turn.completions:
            self.spaces[completion.owner].answered(completion.future, completion.value)
        return turn


def _step(bench: _Bench, position: int) -> tuple[float, float, float]:
    """Seconds to issue, form and finish one step of all."""
    issued = _timed(lambda: _issue(bench, position))
    turns: list[Turn] = []
    formed = _timed(lambda: turns.append(bench.turn(Quiet())))
    (wave,) = turns[0].waves
    answer = _answer(wave)
    return issued, formed, _timed(lambda: bench.turn(answer))


def _issue(bench: _Bench, position: int) -> None:
    for space in bench.spaces.values():
        embed_txt.issue(space, QUEUE, [TOKEN], [position], INPUT)
        forward.issue(space, QUEUE, (0, PAGES), INPUT, (0, PAGES), OUTPUT)
        sample.issue(space, QUEUE, OUTPUT[0], GREEDY, position)


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
