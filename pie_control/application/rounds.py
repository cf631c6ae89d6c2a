"""When the inferlets of a host run, and when it speaks: in rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum

from ..inferlets.runner import Runner


class RoundState(StrEnum):
    """Where a host is between its rounds."""

    IDLE = "idle"  # no round is asked for
    SOON = "soon"  # one comes with the next turn of the event loop
    RUNNING = "running"
    HELD = "held"  # none comes until `let_go`
    DUE = "due"  # held, and `let_go` makes one


WOKEN = {RoundState.IDLE: RoundState.SOON, RoundState.HELD: RoundState.DUE}
"""What a state becomes when a round is asked for; the others stay as they are. One that runs looks for itself."""
STOPPED = {RoundState.IDLE: RoundState.HELD, RoundState.SOON: RoundState.DUE}
"""What a state becomes when rounds are held; the others stay as they are."""


class Rounds:
    """Calls `speak` after each round of the runner; with True if all inferlets wait. Belongs to one event loop."""

    def __init__(self, speak: Callable[[bool], None]) -> None:
        self.runner: Runner
        self._speak = speak
        self._state = RoundState.IDLE
        self._soon: asyncio.Handle | None = None  # the round of the state SOON
        self._owed = False

    def _become(self, state: RoundState) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if state is RoundState.SOON:
            self._soon = asyncio.get_running_loop().call_soon(self._round)
        self._state = state

    def hold(self) -> None:
        """No round until `let_go`, which comes in this turn of the event loop."""
        if self._state in STOPPED:
            self._become(STOPPED[self._state])

    @property
    def is_due(self) -> bool:
        """Whether `let_go` makes a round."""
        return self._state is RoundState.DUE

    def let_go(self) -> None:
        """The round that was asked for, at once: a turn of the event loop less for an inferlet that waits."""
        if self._state is RoundState.DUE:
            self._round()
        elif self._state is RoundState.HELD:
            self._become(RoundState.IDLE)

    def wake(self) -> None:
        """Asks for a round soon."""
        if self._state in WOKEN:
            self._become(WOKEN[self._state])

    def owe(self) -> None:
        """Asks for a round that ends with all inferlets waiting, even if none can run."""
        self._owed = True
        self.wake()

    def _round(self) -> None:
        self._become(RoundState.RUNNING)
        try:
            if self.runner.run_ready():
                self._say_quiet()
                if self.runner.run_busy():  # one that never waits gets a slice
                    self._say_quiet()
            else:
                self._speak(False)
        finally:
            self._become(RoundState.IDLE)
            if self._owed or self.runner.has_work:
                self.wake()

    def _say_quiet(self) -> None:
        self._owed = False
        self._speak(True)

    def close(self) -> None:
        """No round comes any more. Idempotent."""
        self._become(RoundState.IDLE)
