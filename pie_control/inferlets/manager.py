"""The inferlet lifecycle manager (paper, section 5.1): launches, ends and lists inferlets, holds them to limits."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config import InferletLimits
from ..errors import Overloaded, UnknownName
from ..programs.launcher import ComponentHost
from ..programs.store import Program
from .inferlet import Inferlet, InferletInfo
from .lifecycle import ENDINGS, Status, check_transition
from .mailbox import Listener
from .runner import Runner, RunnerStatistics

if TYPE_CHECKING:
    from ..engine.model import Model

KEPT_ENDED = 1000
"""Ended inferlets that can still be asked about."""
KEPT_ENDED_BYTES = 64 << 20
"""What their logs, results and unread messages may take together."""
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


class InferletManager:
    """All inferlets of a server. `release(inferlet)` frees what one held at the models; `on_quiet` forms waves."""

    def __init__(
        self,
        host: ComponentHost,
        limits: InferletLimits,
        max_inferlets: int,
        release: Callable[[Inferlet], None],
        on_quiet: Callable[[], None],
    ) -> None:
        self._host = host
        self._limits = limits
        self._max_inferlets = max_inferlets
        self._release = release
        self.on_quiet = on_quiet
        self.runner = Runner(self)
        self._running: dict[str, Inferlet] = {}
        self._ended: OrderedDict[str, Inferlet] = OrderedDict()
        self._ended_bytes = 0
        self._launched = 0
        self._endings = {str(status): 0 for status in sorted(ENDINGS)}
        self._sweeper: asyncio.TimerHandle | None = None
        self._warmer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts the sweep for idle inferlets and fills the warm pool."""
        self._sweep()
        self._warm_up()

    # ---- launching ----

    def launch(
        self,
        program: Program,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        models: Mapping[str, Model],
        listener: Listener | None,
    ) -> Inferlet:
        """Starts an inferlet of a prepared program; raises Overloaded."""
        if len(self._running) >= self._max_inferlets:
            raise Overloaded(f"{len(self._running)} inferlets run, no more are allowed: try again when some have ended")
        self._launched += 1
        inferlet = Inferlet(self._launched, program, arguments, environment, self._limits, self.runner)
        inferlet.models = models
        self._host.instance(program, inferlet)
        if listener is not None:
            inferlet.attach(listener)
        self._running[inferlet.id] = inferlet
        self.runner.ready(inferlet)
        self._warm_later()
        return inferlet

    def _warm_later(self) -> None:
        if self._warmer is None:
            self._warmer = asyncio.get_running_loop().call_later(WARM_AFTER_SECONDS, self._warm_up)

    def _warm_up(self) -> None:
        self._warmer = None
        if self._host.warm_one():
            self._warm_later()

    # ---- ending ----

    def on_done(self, inferlet: Inferlet) -> None:
        """The guest has ended by itself."""
        error = inferlet.instance.outcome()
        self.end(inferlet, Status.FINISHED if error is None else Status.FAILED, error)

    def on_step(self, inferlet: Inferlet) -> None:
        """The guest had a turn: holds it to its processor time."""
        limit = self._limits.cpu_seconds
        if inferlet.cpu_seconds > limit:
            self.end(inferlet, Status.EXCEEDED, f"used more than {limit:g} s of processor time")

    def end(self, inferlet: Inferlet, status: Status, error: str | None) -> None:
        """Ends an inferlet wherever it is, frees everything that it held, tells its client. Idempotent.

        One that has the processor (it is ended by something that it caused) ends after its turn."""
        if inferlet is self.runner.current:
            asyncio.get_running_loop().call_soon(self.end, inferlet, status, error)
            return
        if inferlet.id not in self._running:
            return
        check_transition(inferlet.status, status)
        del self._running[inferlet.id]
        self.runner.forget(inferlet)
        inferlet.instance.close()
        self._release(inferlet)
        inferlet.finish(status, error)
        self._endings[status] += 1
        self._keep_ended(inferlet)

    def _keep_ended(self, inferlet: Inferlet) -> None:
        self._ended[inferlet.id] = inferlet
        self._ended_bytes += inferlet.kept_bytes
        while len(self._ended) > KEPT_ENDED or (self._ended_bytes > KEPT_ENDED_BYTES and len(self._ended) > 1):
            _, oldest = self._ended.popitem(last=False)
            self._ended_bytes -= oldest.kept_bytes

    def _sweep(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        oldest = time.monotonic() - self._limits.idle_seconds
        for inferlet in [one for one in self._running.values() if one.last_activity < oldest]:
            self.end(inferlet, Status.EXCEEDED, f"was idle for more than {self._limits.idle_seconds:g} s")

    # ---- asking ----

    def get(self, inferlet_id: str) -> Inferlet:
        """A running or recently ended inferlet; raises UnknownName."""
        found = self._running.get(inferlet_id) or self._ended.get(inferlet_id)
        if found is None:
            raise UnknownName(f"no inferlet {inferlet_id!r}: it never existed, or ended long ago")
        return found

    def running(self) -> tuple[Inferlet, ...]:
        return tuple(self._running.values())

    def infos(self) -> tuple[InferletInfo, ...]:
        """Of those that have recently ended and those that run, oldest first."""
        return tuple(one.info() for one in (*self._ended.values(), *self._running.values()))

    def statistics(self) -> InferletStatistics:
        return InferletStatistics(
            len(self._running), self._launched, dict(self._endings), self._host.warm, self.runner.statistics()
        )

    def close(self) -> None:
        """Ends all inferlets and stops the timers. Idempotent."""
        for timer in (self._sweeper, self._warmer):
            if timer is not None:
                timer.cancel()
        for inferlet in self.running():
            self.end(inferlet, Status.TERMINATED, "the server stops")
        self._host.close()
