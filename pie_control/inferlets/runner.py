"""Gives inferlets the processor, one at a time, on the thread of the event loop.

Theory of operation. `_ready` holds the inferlets that can run; `run_ready` gives each a turn until all of them wait.
Waves are formed only then, so that every inferlet that a result woke takes part in the next batch. An inferlet that was
preempted a few times in a row is *busy*: the others no longer wait for it. `run_busy` gives one busy inferlet a slice,
between turns of the event loop, so an endless loop costs the others at most one slice per turn.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..host_memory import MemoryMeter
from ..sandbox.fibers import Step
from .inferlet import Inferlet
from .lifecycle import ENDINGS, Status

PREEMPTIONS_UNTIL_BUSY = 3
LONGEST_RUN_SECONDS = 0.02
"""`run_ready` returns to the event loop after this time, even if inferlets are ready."""
TURNS_IN_ROUND = 8
"""Waves are formed after this many turns per ready inferlet, on average, even if some are still ready."""


@dataclass(frozen=True)
class RunnerStatistics:
    """Counts since the start; processor time of guests in seconds, memory of the process in bytes."""

    turns: int
    preemptions: int
    guest_seconds: float
    memory_bytes: int


class Runner:
    """Runs inferlets. It calls `wake` when an inferlet can run, and `on_step` after each turn of an inferlet."""

    def __init__(self, wake: Callable[[], None], on_step: Callable[[Inferlet, Step], None]) -> None:
        self._wake = wake
        self._on_step = on_step
        self._ready: deque[Inferlet] = deque()
        self._queued: set[int] = set()
        self._busy: deque[Inferlet] = deque()
        self._preempted: dict[int, int] = {}
        self.current: Inferlet | None = None
        self._turns_left = 0  # of this round
        self._turns = self._preemptions = 0
        self._guest_seconds = 0.0
        self.memory = MemoryMeter()

    @property
    def has_work(self) -> bool:
        """Whether an inferlet can run."""
        return bool(self._ready or self._busy)

    def ready(self, inferlet: Inferlet) -> None:
        """Queues an inferlet that can run."""
        if inferlet.number not in self._queued and inferlet.status not in ENDINGS:
            self._queued.add(inferlet.number)
            self._ready.append(inferlet)
            self._wake()

    def run_ready(self) -> bool:
        """Gives turns until all inferlets but the busy ones wait, or have had their share. False if the event loop
        should run first."""
        deadline = time.perf_counter() + LONGEST_RUN_SECONDS
        self.memory.growth()  # since then, not by guests
        if self._turns_left == 0:
            self._turns_left = TURNS_IN_ROUND * len(self._ready)
        while self._ready and self._turns_left:
            self._turns_left -= 1
            self._turn(self._ready.popleft())
            if self._ready and self._turns_left and time.perf_counter() > deadline:
                return False
        self._turns_left = 0
        return True  # even if some are ready: one that never waits must not delay the others

    def run_busy(self) -> bool:
        """Gives one busy inferlet a slice; False if there is none."""
        if not self._busy:
            return False
        self.memory.growth()
        self._turn(self._busy.popleft())
        return True

    def _turn(self, inferlet: Inferlet) -> None:
        self._queued.discard(inferlet.number)
        if inferlet.status in ENDINGS:
            return
        if inferlet.status is Status.CREATED:
            inferlet.change(Status.RUNNING)
        inferlet.processor_time.turn_begins(time.monotonic())
        start = time.thread_time()  # without the time in which the system runs others
        self.current = inferlet
        try:
            inferlet.before_step()
            step = inferlet.instance.step()
        finally:
            self.current = None
        elapsed = time.thread_time() - start
        inferlet.processor_time.charge(elapsed)
        inferlet.memory_bytes += self.memory.growth()
        inferlet.last_activity = now = time.monotonic()
        self._turns += 1
        self._guest_seconds += elapsed
        if step is Step.PREEMPTED:
            self._after_preemption(inferlet)
        else:
            self._preempted.pop(inferlet.number, None)
            inferlet.processor_time.waits(now)
        self._on_step(inferlet, step)

    def _after_preemption(self, inferlet: Inferlet) -> None:
        self._preemptions += 1
        count = self._preempted.get(inferlet.number, 0) + 1
        self._preempted[inferlet.number] = count
        self._queued.add(inferlet.number)
        if count < PREEMPTIONS_UNTIL_BUSY:
            self._ready.appendleft(inferlet)  # taking turns here would only delay every one
        else:
            self._busy.append(inferlet)

    def forget(self, inferlet: Inferlet) -> None:
        """Drops what is stored for an inferlet that has ended."""
        self._preempted.pop(inferlet.number, None)

    def statistics(self) -> RunnerStatistics:
        return RunnerStatistics(self._turns, self._preemptions, self._guest_seconds, self.memory.resident)
