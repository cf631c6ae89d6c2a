"""The control loop: take what workers and hosts say, form waves and send them, tell the hosts results.

Every turn of a scheduler may send waves: those that need no guest go before guests run, and the others as soon as the
policy says so, at the latest when all inferlets wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic as clock
from typing import Protocol

from ..scheduling import Turn
from .model import Model
from .replica import Replica


class Inferlets(Protocol):
    """The hosts of all inferlets, as the loop sees them."""

    def post_results(self, model: str, replica: Replica, turn: Turn) -> None:
        """Sends each host, with the next `flush`, what a turn says to its inferlets."""

    def flush(self) -> None:
        """Sends what was posted."""

    def tell_states(self) -> None:
        """A worker has begun or ceased to serve."""


class Loop:
    """All methods belong to the thread of one event loop."""

    def __init__(self) -> None:
        self._hosts: Inferlets
        self._on_turn: Callable[[str, Turn], None] | None = None
        self._models: Sequence[Model] = ()
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._running = False

    def start(
        self, hosts: Inferlets, models: Sequence[Model], on_turn: Callable[[str, Turn], None] | None = None
    ) -> None:
        """From now on, every event leads to a step. `on_turn`: hears what hosts are told of a model, before them."""
        self._hosts, self._models, self._on_turn = hosts, models, on_turn
        for model in models:
            for replica in model.replicas:
                replica.listen(on_results=self.step, wake=self.wake, on_state=hosts.tell_states)

    # ---- the story ----

    def step(self) -> None:
        """One turn of every worker to which something has happened. Then results go to the hosts of the inferlets that
        wait for them. What these do with them, and that all of them wait again, leads to the next step."""
        if self._running:
            self.wake()
            return
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self._running = True
        try:
            for model in self._models:
                for replica, turn in model.turns():
                    if self._on_turn is not None:
                        self._on_turn(model.name, turn)
                    self._hosts.post_results(model.name, replica, turn)
            deadlines = (replica.deadline for model in self._models for replica in model.replicas)
            self._set_timer(min((one for one in deadlines if one is not None), default=None))
        finally:
            self._running = False
        self._hosts.flush()

    # ---- when the next step comes ----

    def wake(self) -> None:
        """Asks for a step soon."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self.step)

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
