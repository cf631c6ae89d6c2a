"""Gives inferlets the processor, one at a time, on the thread of the event loop.

Theory of operation. `run_ready` gives turns to the inferlets that can run, until all of them wait or ROUND_SECONDS are
over. Waves are formed only then, so that every inferlet that a result woke takes part in the next batch. An inferlet
that was preempted goes after those that were not: many that compute do not keep one waiting that needs little. Those
that were just launched go after those that have begun, but for one turn in NEW_TURNS: of many that come at once, the
first shall have something to do for the worker while the others begin. After two preemptions in a row it is *busy*: the
others no longer wait for it at all. `run_busy` gives one busy inferlet a slice, between turns of the event loop, so an
endless loop costs the others at most one slice per turn. Whose budget of processor time is spent is *paused*: its
inferlets keep what they have, and those that could run wait until it goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from ..sandbox.fibers import Step
from ..tenants.pauses import Payer
from .inferlet import Inferlet
from .lifecycle import ENDINGS, Status
from .memory_use import MemoryUse

PREEMPTIONS_UNTIL_BUSY = 2
NEW_TURNS = 4
"""One in so many turns is of an inferlet that was just launched, if others can go on."""
LONG_SECONDS = 5.0
"""Processor time without a wait, of which the log of an inferlet tells."""
LONGEST_RUN_SECONDS = 0.005
"""`run_ready` returns to the event loop after this time, even if inferlets are ready."""
TURNS_IN_ROUND = 8
"""Waves are formed after this many turns per ready inferlet, on average, even if some are still ready."""
ROUND_SECONDS = 0.04
"""Waves are formed after this time as well: a worker that idles longer, since guests compute, gains nothing from it."""


class Runner:
    """Runs inferlets. It calls `wake` when an inferlet can run, `on_step` after each turn of one, and `on_failed` where
    the server fails in a turn. `turns`, `preemptions` and `guest_seconds`, of processor time, count since the start."""

    def __init__(
        self,
        wake: Callable[[], None],
        on_step: Callable[[Inferlet, Step], None],
        on_failed: Callable[[Inferlet, Exception], None],
    ) -> None:
        self._wake = wake
        self._on_step = on_step
        self._on_failed = on_failed
        self._ready: deque[Inferlet] = deque()
        self._new: deque[Inferlet] = deque()  # that have had no turn; ready, too
        self._interrupted: deque[Inferlet] = deque()  # that were preempted in their last turn; ready, too
        self._queued: set[int] = set()
        self._busy: deque[Inferlet] = deque()
        self._paused: dict[Payer, dict[Inferlet, None]] = {}  # with those that could run; they count as queued
        self._preempted: dict[int, int] = {}  # slices in a row
        self._computed: dict[int, float] = {}  # seconds of these
        self._turns_left = 0  # of this round
        self._round_ends = 0.0
        self.turns = self.preemptions = 0
        self.guest_seconds = 0.0
        self.memory = MemoryUse()

    @property
    def has_work(self) -> bool:
        """Whether an inferlet can run."""
        return self.has_ready or bool(self._busy)

    @property
    def has_ready(self) -> bool:
        """Whether one can run that is not busy."""
        return bool(self._ready or self._new or self._interrupted)

    def ready(self, inferlet: Inferlet) -> None:
        """Queues an inferlet that can run."""
        if inferlet.number not in self._queued and inferlet.status not in ENDINGS:
            self._queued.add(inferlet.number)
            (self._new if inferlet.status is Status.CREATED else self._ready).append(inferlet)
            self._wake()

    def pause(self, payer: Payer) -> None:
        """What a tenant and one of its keys have launched gets no turn before `resume`. Idempotent."""
        self._paused.setdefault(payer, {})

    def resume(self, payer: Payer) -> None:
        """Idempotent."""
        for inferlet in self._paused.pop(payer, ()):
            self._queued.discard(inferlet.number)
            self.ready(inferlet)

    def is_held(self, inferlet: Inferlet) -> bool:
        """Whether it could run, and is paused."""
        return inferlet in self._paused.get(_payer(inferlet), ())

    def can_run(self, inferlet: Inferlet) -> bool:
        """Whether it waits for a turn, or would if it was not paused."""
        return inferlet.number in self._queued

    def run_ready(self) -> bool:
        """Gives turns until all inferlets but the busy ones wait, or have had their share. False if the event loop
        should run first."""
        now = time.perf_counter()
        deadline = now + LONGEST_RUN_SECONDS
        self.memory.settle_if_idle()
        if self._turns_left == 0:
            self._turns_left = TURNS_IN_ROUND * (len(self._ready) + len(self._new) + len(self._interrupted))
            self._round_ends = now + ROUND_SECONDS
            if self._interrupted and (self._ready or self._new):  # or it might never have its turn
                self._turn(self._interrupted.pop())
        while self.has_ready and self._turns_left:
            self._turns_left -= 1
            self._turn(self._next())
            now = time.perf_counter()
            if now > self._round_ends:
                break
            if now > deadline and self._turns_left and self.has_ready:
                return False
        self._turns_left = 0
        return True  # even if some are ready: one that never waits must not delay the others

    def _next(self) -> Inferlet:
        if self._new and (not self._ready or self.turns % NEW_TURNS == 0):
            return self._new.popleft()
        return (self._ready or self._interrupted).popleft()

    def run_busy(self) -> bool:
        """Gives one busy inferlet a slice; False if there is none."""
        if not self._busy:
            return False
        self.memory.settle_if_idle()
        self._turn(self._busy.popleft())
        return True

    def _turn(self, inferlet: Inferlet) -> None:
        if inferlet.status in ENDINGS:
            self._queued.discard(inferlet.number)
            return
        if self._paused and (held := self._paused.get(_payer(inferlet))) is not None:
            held[inferlet] = None
            return
        self._queued.discard(inferlet.number)
        try:
            self._step(inferlet)
        except Exception as error:  # it would wait for ever, and so would what others of the round have issued
            self._on_failed(inferlet, error)

    def _step(self, inferlet: Inferlet) -> None:
        if inferlet.status is Status.CREATED:
            inferlet.change(Status.RUNNING)
        inferlet.processor_time.turn_begins(time.monotonic(), time.thread_time())
        inferlet.waits.answer(inferlet.instance)
        step = inferlet.instance.step()
        elapsed = inferlet.processor_time.turn_ends(time.thread_time())  # without that in which the system runs others
        self.memory.charge(inferlet.kin, elapsed)
        now = time.monotonic()
        inferlet.life.turn_ended(now)
        self.turns += 1
        self.guest_seconds += elapsed
        if step is Step.PREEMPTED:
            self._after_preemption(inferlet, elapsed)
        else:
            self.forget(inferlet)
            inferlet.processor_time.waits(now)
        self._on_step(inferlet, step)

    def _after_preemption(self, inferlet: Inferlet, elapsed: float) -> None:
        self.preemptions += 1
        before = self._computed.get(inferlet.number, 0.0)
        after = self._computed[inferlet.number] = before + elapsed
        if before < LONG_SECONDS <= after:
            inferlet.mail.log(
                f"warning: it has computed for {LONG_SECONDS:g} s without a wait, and none of its other tasks has had "
                f"a turn: does a loop have no end? After {inferlet.limits.cpu_seconds:g} s it ends (--cpu-seconds)"
            )
        count = self._preempted.get(inferlet.number, 0) + 1
        self._preempted[inferlet.number] = count
        self._queued.add(inferlet.number)
        if count < PREEMPTIONS_UNTIL_BUSY:
            self._interrupted.appendleft(inferlet)  # taking turns here would only delay every one
        else:
            self._busy.append(inferlet)

    def forget(self, inferlet: Inferlet) -> None:
        """Drops what is stored for an inferlet that waits, or has ended."""
        self._preempted.pop(inferlet.number, None)
        self._computed.pop(inferlet.number, None)
        if self._paused and inferlet in (held := self._paused.get(_payer(inferlet), {})):
            del held[inferlet]
            self._queued.discard(inferlet.number)


def _payer(inferlet: Inferlet) -> Payer:
    standing = inferlet.launched.standing
    return standing.tenant.name, standing.key
