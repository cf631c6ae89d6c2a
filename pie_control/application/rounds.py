"""When the inferlets of a host run, and when it speaks: in rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..inferlets.runner import Runner


class Rounds:
    """Calls `speak` after each round of the runner; with True if all inferlets wait. Belongs to one event loop."""

    def __init__(self, speak: Callable[[bool], None]) -> None:
        self.runner: Runner
        self._speak = speak
        self._soon: asyncio.Handle | None = None
        self._running = False
        self._owed = False
        self._is_held = False
        self._is_due = False  # while it is held

    def hold(self) -> None:
        """No round until `let_go`, which comes in this turn of the event loop."""
        self._is_held = True

    @property
    def is_due(self) -> bool:
        """Whether `let_go` makes a round."""
        return self._is_due

    def let_go(self) -> None:
        """The round that was asked for meanwhile, at once: a turn of the event loop less for an inferlet that waits."""
        self._is_held = False
        if self._is_due:
            self._is_due = False
            if self._soon is not None:
                self._soon.cancel()
            self._round()

    def wake(self) -> None:
        """Asks for a round soon."""
        if self._is_held:
            self._is_due = True
        elif self._soon is None and not self._running:
            self._soon = asyncio.get_running_loop().call_soon(self._round)

    def owe(self) -> None:
        """Asks for a round that ends with all inferlets waiting, even if none can run."""
        self._owed = True
        self.wake()

    def _round(self) -> None:
        self._soon = None
        self._running = True
        try:
            if self.runner.run_ready():
                self._say_quiet()
                if self.runner.run_busy():  # one that never waits gets a slice
                    self._say_quiet()
            else:
                self._speak(False)
        finally:
            self._running = False
            if self._owed or self.runner.has_work:
                self.wake()

    def _say_quiet(self) -> None:
        self._owed = False
        self._speak(True)

    def close(self) -> None:
        """No round comes any more. Idempotent."""
        if self._soon is not None:
            self._soon.cancel()
