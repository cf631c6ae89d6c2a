"""What does the scheduler itself cost in decode steps of many inferlets?

No sandbox, no event loop, no socket: calls on address spaces, and turns of the scheduler. A step of an inferlet
is `embed_txt`, `forward` and `sample`; the steps of all inferlets go into one wave. Beside them, queues may wait that
nothing can be taken of: for memory, or for another queue of their inferlet. Or the inferlets decode by runs, one each,
in pages that have memory only when they are reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pie_control.calls.allocate import alloc
from pie_control.calls.core import create_queue
from pie_control.calls.forward import plain
from pie_control.calls.fused import decode, sample
from pie_control.calls.input_text import embed_txt
from pie_control.calls.sampler import Sampler, SamplingParams
from pie_control.ids import Owner
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.contention import Action, Holder, Shortage
from pie_control.resources.quotas import Ledger, Quota
from pie_control.scheduling import Adaptive, Event, HostQuiet, Opened, Scheduler, Turn
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import ModelDescription, RunWave, Sample, SampleResult, WaveDone

from ..support.samples import median

PAGES = 16
FREE_PAGES = 64  # half of them are kept for keys that are dropped, so nobody can have as many
QUEUE = 1
INPUT, OUTPUT = (0, 1), (1, 1)  # embeds, as ranges
TOKEN = 65


@dataclass(frozen=True)
class Plan:
    """Numbers of inferlets, and the number of steps of each."""

    inferlets: tuple[int, ...]
    steps: int
    blocked: int  # queues that wait beside the last number of inferlets once more
    runs: tuple[int, ...]  # numbers of inferlets that decode by runs


FULL = Plan((1, 8, 32, 128), steps=200, blocked=1000, runs=(1, 32, 128, 256))
QUICK = Plan((1, 8, 32), steps=60, blocked=1000, runs=(32,))


@dataclass(frozen=True)
class Row:
    """Medians over the steps. `issue_us`: to issue an inferlet's three commands; `form_us`: to form the wave of all
    inferlets; `done_us`: to take the worker's answer, and where there are runs to form the wave after it and to tell
    spaces of tokens. `us_each`: the sum for one inferlet. `blocked`: queues that wait all the time.
    """

    inferlets: int
    blocked: int
    runs: bool
    issue_us: float
    form_us: float
    done_us: float
    us_each: float


async def run(plan: Plan) -> list[Row]:
    """One row for each number of inferlets."""
    rows = [_measure(number, 0, plan.steps) for number in plan.inferlets]
    rows.append(_measure(plan.inferlets[-1], plan.blocked, plan.steps))
    return [*rows, *(_measure_runs(number, plan.steps) for number in plan.runs)]


class _Patient:
    """A contention policy that lets requests wait."""

    def resolve(self, shortage: Shortage, holders: Sequence[Holder]) -> tuple[Action, ...]:
        return ()


class _World:
    """A scheduler and address spaces, whose commands are events of its next turn."""

    def __init__(self, number: int, blocked: int, runs: bool = False) -> None:
        model = FakeModel(num_pages=number * PAGES + FREE_PAGES, num_embeds=2 * number + 1).describe()[0]
        self.scheduler = Scheduler(model, Adaptive(), _Patient())
        self.waiting: dict[Owner, AddressSpace] = {}
        self.events: list[Any] = [Opened(owner, float(owner)) for owner in range(number)]
        self.spaces = [AddressSpace(owner, model, Ledger(Quota()), self.events.append) for owner in range(number)]
        self.samplers = [Sampler(SamplingParams(temperature=0.0), seed=0) for _ in range(number)]
        for space in self.spaces:
            create_queue.issue(space, QUEUE)
            alloc.issue(space, QUEUE, "kvpage", 1 if runs else PAGES)
            alloc.issue(space, QUEUE, "emb", 2)
            if runs:
                alloc.issue(space, QUEUE, "reserved-kvpage", PAGES - 1)
        if blocked:
            self._block(model, number, blocked)

    def _block(self, model: ModelDescription, owner: Owner, queues: int) -> None:
        """Half of the queues wait for pages, one of each inferlet; half of them wait for the first queue of one."""
        for space in self._open_more(model, owner, queues // 2):
            create_queue.issue(space, QUEUE)
            alloc.issue(space, QUEUE, "kvpage", FREE_PAGES)
        (space,) = self._open_more(model, owner + queues // 2, 1)
        create_queue.issue(space, QUEUE)
        alloc.issue(space, QUEUE, "emb", 1)
        alloc.issue(space, QUEUE, "kvpage", FREE_PAGES)
        for queue in range(QUEUE, QUEUE + queues - queues // 2):
            if queue > QUEUE:
                create_queue.issue(space, queue)
            embed_txt.issue(space, queue, [TOKEN], [0], (0, 1))

    def _open_more(self, model: ModelDescription, first: Owner, number: int) -> list[AddressSpace]:
        owners = range(first, first + number)
        self.events += [Opened(owner, float(owner)) for owner in owners]
        spaces = [AddressSpace(owner, model, Ledger(Quota()), self.events.append) for owner in owners]
        self.waiting.update({space.owner: space for space in spaces})
        return spaces

    def issue(self, position: int) -> None:
        for space, sampler in zip(self.spaces, self.samplers, strict=True):
            embed_txt.issue(space, QUEUE, [TOKEN], [position], INPUT)
            plain.issue(space, QUEUE, (0, PAGES), INPUT, (0, PAGES), OUTPUT)
            sample.issue(space, QUEUE, OUTPUT[0], sampler, (), "", 0, position)

    def issue_runs(self, steps: int) -> None:
        """A run of each inferlet behind its first token."""
        pages = (0, PAGES)
        for space, sampler in zip(self.spaces, self.samplers, strict=True):
            embed_txt.issue(space, QUEUE, [TOKEN], [0], INPUT)
            plain.issue(space, QUEUE, (0, 1), INPUT, (0, 1), OUTPUT)
            decode.issue(
                space, QUEUE, OUTPUT[0], sampler, INPUT[0], 1, pages, pages, steps, [TOKEN + 1], "", None, 0, 1
            )

    def form(self) -> Sequence[RunWave]:
        """One wave; with runs, the one that runs ahead too."""
        return self._turn(HostQuiet()).waves

    def finish(self, done: WaveDone) -> Sequence[RunWave]:
        """Takes an answer; the waves that runs go on with."""
        return self._turn(done).waves

    def _turn(self, last: Event) -> Turn:
        turn = self.scheduler.turn(0.0, [*self.events, last])
        self.events.clear()
        for progress in turn.progress:
            space = self.waiting.get(progress.owner) or self.spaces[progress.owner]
            space.progressed(progress.oldest, progress.taken, progress.returned)
        for completion in turn.completions:
            self.spaces[completion.owner].answered(completion.future, completion.value)
        runs = turn.runs
        for owner, future, token, over in zip(runs.owners, runs.futures, runs.tokens, runs.over, strict=True):
            self.spaces[owner].run_advanced(future, (token,), over)
        return turn


def _measure(number: int, blocked: int, steps: int) -> Row:
    world = _World(number, blocked)
    times = [_step(world, position) for position in range(steps + 1)][1:]
    issue, form, done = (1e6 * median(column) for column in zip(*times, strict=True))
    return Row(
        number, blocked, False, *(round(us, 2) for us in (issue / number, form, done, (issue + form + done) / number))
    )


def _measure_runs(number: int, steps: int) -> Row:
    """Two waves are in flight. The mean, not the median: not in every step some run goes on to another page."""
    world = _World(number, 0, runs=True)
    world.issue_runs(steps + 4)
    waves = [*world.form()]
    seconds = 0.0
    for _ in range(steps):
        answer = _answer(waves.pop(0))
        start = time.perf_counter()
        waves += world.finish(answer)
        seconds += time.perf_counter() - start
    us = 1e6 * seconds / steps
    return Row(number, 0, True, 0.0, 0.0, round(us, 2), round(us / number, 2))


def _step(world: _World, position: int) -> tuple[float, float, float]:
    """Seconds to issue, to form and to finish one step of all inferlets."""
    issued = _timed(lambda: world.issue(position))
    waves: list[RunWave] = []
    formed = _timed(lambda: waves.extend(world.form()))
    (wave,) = waves
    answer = _answer(wave)
    return issued, formed, _timed(lambda: world.finish(answer))


def _answer(wave: RunWave) -> WaveDone:
    """A worker's answer: TOKEN for every inferlet."""
    results = [
        SampleResult(np.full(len(batch.embeds), TOKEN, np.int32)) if isinstance(batch, Sample) else None
        for batch in wave.batches
    ]
    return WaveDone(wave.wave, tuple(results), 0.0)


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
