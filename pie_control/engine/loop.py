"""The control loop: take results, let inferlets run, form waves, send them.

Every turn of a scheduler may send waves: those that need no guest go before guests run, and the others as soon as the
policy says so, at the latest when all inferlets wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic as clock

from ..calls.values import Completion
from ..inferlets.lifecycle import Status
from ..inferlets.manager import InferletManager
from ..scheduling import Ending
from .replica import Replica


class Loop:
    """All methods belong to the thread of one event loop."""

    def __init__(self) -> None:
        self._inferlets: InferletManager
        self._replicas: Sequence[Replica] = ()
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._running = False

    def start(self, inferlets: InferletManager, replicas: Sequence[Replica]) -> None:
        """From now on, every event leads to a step."""
        self._inferlets, self._replicas = inferlets, replicas
        for replica in replicas:
            replica.listen(on_results=self.step, wake=self.wake)

    # ---- the story ----

    def step(self) -> None:
        """One turn of everything. A step that is asked for within a step is part of it."""
        if self._running:
            return
        self._running = True
        try:
            self._take_turns(quiet=False)  # results reach the inferlets that wait for them
            if self._inferlets.runner.run_ready():  # until all wait
                self._take_turns(quiet=True)  # nobody has to wait for them any more
                if self._inferlets.runner.run_busy():  # one that never waits gets a slice
                    self._take_turns(quiet=True)
        finally:
            self._running = False
            if self._inferlets.runner.has_work:
                self.wake()

    def _take_turns(self, quiet: bool) -> None:
        for replica in self._replicas:
            self._take_turn(replica, quiet)
        self._set_timer(min((one.deadline for one in self._replicas if one.deadline is not None), default=None))

    def _take_turn(self, replica: Replica, quiet: bool) -> None:
        turn = replica.turn(quiet)
        if turn is not None:
            for completion in turn.completions:
                self._complete(completion)
            for ending in turn.endings:
                self._end(ending)

    # ---- what comes out of a turn ----

    def _complete(self, completion: Completion) -> None:
        inferlet = self._inferlets.try_running(completion.owner)
        if inferlet is not None:
            inferlet.resolve(completion.future, completion.value)

    def _end(self, ending: Ending) -> None:
        inferlet = self._inferlets.try_running(ending.owner)
        if inferlet is not None:
            self._inferlets.end(inferlet, Status(ending.reason), str(ending.error))

    # ---- when the next step comes ----

    def wake(self) -> None:
        """Asks for a step soon."""
        if self._soon is None and not self._running:
            self._soon = asyncio.get_running_loop().call_soon(self._step_soon)

    def _step_soon(self) -> None:
        self._soon = None
        self.step()

    def _set_timer(self, deadline: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, deadline - clock()), self.step)

    def close(self) -> None:
        """No step comes any more. Idempotent."""
        for pending in (self._soon, self._timer):
            if pending is not None:
                pending.cancel()
