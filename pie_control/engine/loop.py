"""The control loop: take what workers and hosts say, tell the hosts results, form waves, send them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic as clock
from typing import Protocol

from ..scheduling import Turn
from .model import Model


class Inferlets(Protocol):
    """The hosts of all inferlets, as the loop sees them."""

    @property
    def are_quiet(self) -> bool:
        """Whether all inferlets wait, and no result is on its way to them."""

    def post_results(self, model: str, turn: Turn) -> None:
        """Sends each host, with the next `flush`, what a turn says to its inferlets."""

    def flush(self) -> None:
        """Sends what was posted."""

    def tell_states(self) -> None:
        """A worker has begun or ceased to serve."""


class Loop:
    """All methods belong to the thread of one event loop."""

    def __init__(self) -> None:
        self._hosts: Inferlets
        self._models: Sequence[Model] = ()
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._running = False

    def start(self, hosts: Inferlets, models: Sequence[Model]) -> None:
        """From now on, every event leads to a step."""
        self._hosts, self._models = hosts, models
        for model in models:
            for replica in model.replicas:
                replica.listen(on_results=self.step, wake=self.wake, on_state=hosts.tell_states)

    # ---- the story ----

    def step(self) -> None:
        """One turn of everything. Results go to the hosts of the inferlets that wait for them. Once these have run and
        all wait again, which their hosts say, waves are formed and sent."""
        if self._running:
            self.wake()
            return
        self._running = True
        try:
            self._take_turns(quiet=False)
            if self._hosts.are_quiet:
                self._take_turns(quiet=True)
        finally:
            self._running = False
        self._hosts.flush()

    def _take_turns(self, quiet: bool) -> None:
        deadlines = []
        for model in self._models:
            for turn in model.turns(quiet):
                self._hosts.post_results(model.name, turn)
                if turn.deadline is not None:
                    deadlines.append(turn.deadline)
        if quiet:
            self._set_timer(min(deadlines, default=None))

    # ---- when the next step comes ----

    def wake(self) -> None:
        """Asks for a step soon."""
        if self._soon is None:
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
