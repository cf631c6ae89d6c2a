"""The inferlet lifecycle manager (paper, section 5.1): launches, ends and lists inferlets, enforces limits."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..config import InferletLimits
from ..errors import Overloaded, UnknownName
from ..programs.host.programs import HostPrograms
from ..programs.host.python_guests import ProgramOwner
from ..programs.store import Program
from ..sandbox.fibers import Step
from ..services.aside import Aside
from ..services.timers import Timers
from .inferlet import Holdings, Inferlet, InferletInfo
from .lifecycle import ENDINGS, Status, check_transition
from .mailbox import Listener
from .runner import Runner, RunnerStatistics

KEPT_ENDED = 1000
"""Number of ended inferlets that clients can still ask about."""
KEPT_ENDED_BYTES = 64 << 20
"""Limit for the sum of their logs, results and unread messages."""
LAUNCHES_UNTIL = 7 / 8
"""Share of the memory for guests at which launches are refused: the rest is for those that run."""
LEAST_TO_END = 1 << 20
"""Bytes by which an inferlet must have grown, if it is to end for lack of memory: it would free next to nothing."""
SWEEP_SECONDS = 1.0
WARM_AFTER_SECONDS = 0.02


@dataclass(frozen=True)
class InferletStatistics:
    """Counts; `warm` instances wait for a launch."""

    running: int
    launched: int
    ended: dict[str, int]
    warm: int
    runner: RunnerStatistics


class Guest(ProgramOwner, Holdings, Protocol):
    """The owner of an inferlet's instance and of its holdings."""


class InferletManager:
    """All inferlets of a server, and their runner. `make_guest` gives an inferlet what its host functions need; the
    manager calls `wake` when an inferlet can run."""

    def __init__(
        self,
        programs: HostPrograms,
        limits: InferletLimits,
        max_inferlets: int,
        max_guest_bytes: int,
        make_guest: Callable[[Inferlet], Guest],
        wake: Callable[[], None],
    ) -> None:
        self._programs = programs
        self._limits = limits
        self._max_inferlets = max_inferlets
        self._max_guest_bytes = max_guest_bytes or sys.maxsize  # 0: not known
        self._make_guest = make_guest
        self.runner = Runner(wake, self._after_step)
        self._timers = Timers()
        self._aside = Aside()
        self._bytes_before = 0  # what the process holds without guests
        self._running: dict[int, Inferlet] = {}  # by number
        self._ended: OrderedDict[int, Inferlet] = OrderedDict()
        self._ended_bytes = 0
        self._launched = 0
        self._endings = {str(status): 0 for status in sorted(ENDINGS)}
        self._sweeper: asyncio.TimerHandle | None = None
        self._warmer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the sweep for idle inferlets and fills the warm pool."""
        self.runner.memory.growth()
        self._bytes_before = self.runner.memory.resident
        self._sweep()
        self._warm_up()

    # ---- launching ----

    def launch(
        self,
        program: Program,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        listener: Listener | None,
    ) -> Inferlet:
        """Starts an inferlet of a prepared program; raises Overloaded."""
        if len(self._running) >= self._max_inferlets:
            raise Overloaded(f"{len(self._running)} inferlets run, which is the limit: try again when some have ended")
        if self._guest_bytes > self._max_guest_bytes * LAUNCHES_UNTIL:
            raise Overloaded(f"{self._memory_use()}: try again when some have ended")
        self._launched += 1
        inferlet = Inferlet(
            self._launched, program, arguments, environment, self._limits, self.runner.ready, self._timers, self._aside
        )
        guest = self._make_guest(inferlet)
        self._programs.instance(program.hash, program.name, guest)
        inferlet.instance, inferlet.holdings = guest.instance, guest
        if listener is not None:
            inferlet.attach(listener)
        self._running[inferlet.number] = inferlet
        self.runner.ready(inferlet)
        self._warm_later()
        return inferlet

    def _warm_later(self) -> None:
        if self._warmer is None:
            self._warmer = asyncio.get_running_loop().call_later(WARM_AFTER_SECONDS, self._warm_up)

    def _warm_up(self) -> None:
        self._warmer = None
        if self._programs.warm_one():
            self._warm_later()

    # ---- ending ----

    def _after_step(self, inferlet: Inferlet, step: Step) -> None:
        """Ends an inferlet that finished in its last turn, or that has used too much processor time."""
        if step is Step.DONE:
            error = inferlet.instance.outcome()
            self.end(inferlet, Status.FINISHED if error is None else Status.FAILED, error)
        elif inferlet.processor_time.is_exceeded:
            self.end(inferlet, Status.EXCEEDED, f"used more than {self._limits.cpu_seconds:g} s of processor time")
        elif self._guest_bytes > self._max_guest_bytes:
            self._make_room(inferlet)

    # ---- memory ----

    @property
    def _guest_bytes(self) -> int:
        """Of all guests, at the last reading."""
        return self.runner.memory.resident - self._bytes_before

    def _memory_use(self) -> str:
        return f"all inferlets together hold {self._guest_bytes >> 20} MiB of {self._max_guest_bytes >> 20} MiB"

    def _make_room(self, inferlet: Inferlet) -> None:
        """Ends the inferlet that just ran if it has more than an equal share of the memory, else the largest one."""
        if inferlet.memory_bytes < self._max_guest_bytes / len(self._running):
            inferlet = max(self._running.values(), key=lambda one: one.memory_bytes)
        if inferlet.memory_bytes >= LEAST_TO_END:
            held = f"{inferlet.memory_bytes >> 20} MiB of it by this one"
            self.end(inferlet, Status.EXCEEDED, f"{self._memory_use()}, {held}: use less, or try again later")

    def end(self, inferlet: Inferlet, status: Status, error: str | None) -> None:
        """Ends an inferlet in any state, frees everything that it held, and informs its client. Idempotent.

        An inferlet that is running now (it caused its own end) ends after its turn."""
        if inferlet is self.runner.current:
            asyncio.get_running_loop().call_soon(self.end, inferlet, status, error)
            return
        if inferlet.number not in self._running:
            return
        check_transition(inferlet.status, status)
        del self._running[inferlet.number]
        self.runner.forget(inferlet)
        inferlet.instance.close()
        inferlet.holdings.release()
        self.runner.memory.growth()  # what was freed is nobody's growth
        inferlet.finish(status, error)
        self._endings[status] += 1
        self._keep_ended(inferlet)

    def _keep_ended(self, inferlet: Inferlet) -> None:
        self._ended[inferlet.number] = inferlet
        self._ended_bytes += inferlet.kept_bytes
        while len(self._ended) > KEPT_ENDED or (self._ended_bytes > KEPT_ENDED_BYTES and len(self._ended) > 1):
            _, oldest = self._ended.popitem(last=False)
            self._ended_bytes -= oldest.kept_bytes

    def _sweep(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        oldest = time.monotonic() - self._limits.idle_seconds
        for inferlet in [one for one in self._running.values() if one.last_activity < oldest]:
            self.end(inferlet, Status.EXCEEDED, f"was idle for more than {self._limits.idle_seconds:g} s")

    # ---- look-ups ----

    def get(self, inferlet_id: str) -> Inferlet:
        """A running or recently ended inferlet; raises UnknownName."""
        number = int(inferlet_id[1:]) if inferlet_id[:1] == "i" and inferlet_id[1:].isdecimal() else 0
        found = self._running.get(number) or self._ended.get(number)
        if found is None or found.id != inferlet_id:
            raise UnknownName(f"no inferlet {inferlet_id!r}: it never existed, or ended long ago")
        return found

    def try_running(self, number: int) -> Inferlet | None:
        """The inferlet with this number if it runs, else None."""
        return self._running.get(number)

    def infos(self) -> tuple[InferletInfo, ...]:
        """Recently ended inferlets, then running ones, oldest first."""
        return tuple(one.info() for one in (*self._ended.values(), *self._running.values()))

    def statistics(self) -> InferletStatistics:
        return InferletStatistics(
            len(self._running), self._launched, dict(self._endings), self._programs.warm, self.runner.statistics()
        )

    def close(self) -> None:
        """Ends all inferlets and stops the timers. Idempotent."""
        for timer in (self._sweeper, self._warmer):
            if timer is not None:
                timer.cancel()
        for inferlet in list(self._running.values()):
            self.end(inferlet, Status.TERMINATED, "the server stops")
        self._aside.close()
        self.runner.memory.close()
        self._programs.close()
