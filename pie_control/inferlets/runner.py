"""Gives inferlets the processor, one at a time, on the thread of the event loop.

Theory of operation. `_ready` holds inferlets that can go on; `run` gives each a turn until all of them wait, and then
tells the watcher that it is quiet: only now are waves formed, so that everyone whom a result woke takes part in the
next batch. An inferlet that was preempted a few times in a row without waiting is *busy*: nobody waits for it any more.
Busy ones take turns of one slice each, between turns of the event loop, so an endless loop costs the others at most a
slice per turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..sandbox.fibers import Step
from .inferlet import Inferlet, Timer
from .lifecycle import ENDINGS, Status

PREEMPTIONS_UNTIL_BUSY = 3
LONGEST_RUN_SECONDS = 0.02
"""After this long `run` lets the event loop have a turn, even if inferlets are ready."""
TURNS_IN_ROUND = 8
"""Turns for each inferlet that is ready, on the average, after which waves are formed though some still are."""


@dataclass(frozen=True)
class RunnerStatistics:
    """Counts since the start."""

    turns: int
    preemptions: int
    guest_seconds: float


class Watcher(Protocol):
    """Who is told what the runner sees."""

    def on_done(self, inferlet: Inferlet) -> None:
        """The guest has ended; its instance knows the outcome."""

    def on_step(self, inferlet: Inferlet) -> None:
        """The guest had a turn and goes on later."""

    def on_quiet(self) -> None:
        """All inferlets but the busy ones wait."""


class Runner:
    """Runs inferlets; tells a watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._ready: deque[Inferlet] = deque()
        self._queued: set[int] = set()
        self._busy: deque[Inferlet] = deque()
        self._preempted: dict[int, int] = {}
        self._scheduled = False
        self._in_run = False
        self.current: Inferlet | None = None
        self._turns_left = 0  # of this round
        self._turns = self._preemptions = 0
        self._guest_seconds = 0.0

    def ready(self, inferlet: Inferlet) -> None:
        """The inferlet can go on: it runs in this loop turn's `run`."""
        if inferlet.number not in self._queued and inferlet.status not in ENDINGS:
            self._queued.add(inferlet.number)
            self._ready.append(inferlet)
            self.schedule()

    def call_at(self, deadline_ns: int, callback: Callable[[], None]) -> Timer:
        """Calls back at a time of the monotonic clock."""
        loop = asyncio.get_running_loop()
        return loop.call_later(max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9), callback)

    def schedule(self) -> None:
        """Calls `run` soon."""
        if not self._scheduled and not self._in_run:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._scheduled_run)

    def _scheduled_run(self) -> None:
        self._scheduled = False
        self.run()

    def run(self) -> None:
        """Turns until all but the busy wait; then `on_quiet`; then a slice for a busy one."""
        if self._in_run:
            return
        self._in_run = True
        try:
            self._run_ready()
        finally:
            self._in_run = False
            if self._ready or self._busy:
                self.schedule()

    def _run_ready(self) -> None:
        deadline = time.perf_counter() + LONGEST_RUN_SECONDS
        if self._turns_left == 0:
            self._turns_left = TURNS_IN_ROUND * len(self._ready)
        while self._ready and self._turns_left:
            self._turns_left -= 1
            self._turn(self._ready.popleft())
            if self._ready and self._turns_left and time.perf_counter() > deadline:
                return  # the event loop gets a turn, then the round goes on
        self._turns_left = 0
        self._watcher.on_quiet()  # even if some are ready: those that never rest must not hold up the others
        if self._busy:
            self._turn(self._busy.popleft())
            self._watcher.on_quiet()  # it may have issued commands before it waited

    def _turn(self, inferlet: Inferlet) -> None:
        self._queued.discard(inferlet.number)
        if inferlet.status in ENDINGS:
            return
        if inferlet.status is Status.CREATED:
            inferlet.change(Status.RUNNING)
        inferlet.before_step()
        self.current = inferlet
        start = time.perf_counter()
        try:
            step = inferlet.instance.step()
        finally:
            self.current = None
        elapsed = time.perf_counter() - start
        inferlet.cpu_seconds += elapsed
        inferlet.last_activity = time.monotonic()
        self._turns += 1
        self._guest_seconds += elapsed
        self._after_step(inferlet, step)

    def _after_step(self, inferlet: Inferlet, step: Step) -> None:
        if step is Step.DONE:
            self._preempted.pop(inferlet.number, None)
            self._watcher.on_done(inferlet)
            return
        if step is Step.WAITING:
            self._preempted.pop(inferlet.number, None)
        else:
            self._after_preemption(inferlet)
        self._watcher.on_step(inferlet)

    def _after_preemption(self, inferlet: Inferlet) -> None:
        self._preemptions += 1
        count = self._preempted.get(inferlet.number, 0) + 1
        self._preempted[inferlet.number] = count
        self._queued.add(inferlet.number)
        if count < PREEMPTIONS_UNTIL_BUSY:
            self._ready.appendleft(inferlet)  # taking turns here would only make everyone late
        else:
            self._busy.append(inferlet)

    def forget(self, inferlet: Inferlet) -> None:
        """An inferlet has ended."""
        self._preempted.pop(inferlet.number, None)

    def statistics(self) -> RunnerStatistics:
        return RunnerStatistics(self._turns, self._preemptions, self._guest_seconds)
