"""The life of a process that control depends on: it serves, is lost, and is started again, for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

from ..errors import PieError
from .restarts import LONGEST_PAUSE_SECONDS, Outage, Restarts

PATIENCE_SECONDS = 5.0
"""What is lost is waited for if it is started again within this time. If it takes longer, who waits is told so."""


class State(StrEnum):
    """Where it is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    RESTARTING = "restarting"
    PAUSING = "pausing"  # it is started again later
    CLOSED = "closed"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.SERVING, State.CLOSED}),
    State.SERVING: frozenset({State.RESTARTING, State.PAUSING, State.CLOSED}),
    State.RESTARTING: frozenset({State.SERVING, State.PAUSING, State.CLOSED}),
    State.PAUSING: frozenset({State.RESTARTING, State.CLOSED}),
    State.CLOSED: frozenset(),
}


class Life:
    """Its state, and the task that starts it again."""

    def __init__(
        self,
        what: str,
        start_again: Callable[[], Awaitable[None]],
        on_failed: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        longest_pause: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        """`what` lives: "worker". `start_again` calls `serve`, or raises an error that says why it cannot. Then
        `on_failed` is called with the seconds until the next try, `longest_pause` at most. `clock` and `sleep` are in
        seconds."""
        self.state = State.STARTING
        self._what = what
        self.restarts = 0
        self.on_state: Callable[[], None] = lambda: None
        """Called when `state` has changed."""
        self._start_again = start_again
        self._on_failed = on_failed
        self._clock = clock
        self._sleep = sleep
        self._restarts = Restarts(longest_pause)
        self._restart: asyncio.Task[None] | None = None

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"a {self._what} that is {self.state} cannot be {state}"
        self.state = state
        self.on_state()

    @property
    def serves(self) -> bool:
        return self.state is State.SERVING

    def serve(self) -> None:
        """It serves from now on."""
        self._restarts.serves(self._clock())
        self._become(State.SERVING)

    @property
    def can_serve(self) -> bool:
        """Whether it serves, now or soon."""
        match self.state:
            case State.SERVING | State.RESTARTING:
                return True
            case State.PAUSING:
                return self._restarts.outage(self._clock()).next_try_seconds <= PATIENCE_SECONDS
        return False

    @property
    def outage(self) -> Outage | None:
        """Since when it does not serve, and why; None if it does, or is closed."""
        lost = self.state in (State.RESTARTING, State.PAUSING)
        return self._restarts.outage(self._clock()) if lost else None

    def failed(self, reason: str) -> float:
        """It was lost, or could not be started. Seconds until it will be started again."""
        return self._restarts.failed(self._clock(), reason)

    def restart(self, pause: float) -> None:
        """Starts it again after a pause, until that succeeds."""
        self._become(State.PAUSING if pause else State.RESTARTING)
        self._restart = asyncio.get_running_loop().create_task(self._try_until_it_serves(pause))

    async def _try_until_it_serves(self, pause: float) -> None:
        while self.state is not State.SERVING:
            if pause:
                await self._sleep(pause)
                self._become(State.RESTARTING)
            pause = await self._try()

    async def _try(self) -> float:
        """Seconds to wait before the next try, if this one fails."""
        self._restarts.try_begins()
        try:
            await self._start_again()
        except PieError as error:
            return self._try_failed(str(error))
        except Exception as error:  # no code awaits this task: everybody would wait forever
            return self._try_failed(f"the {self._what} did not restart: {error!r}")
        self.restarts += 1
        return 0.0

    def _try_failed(self, reason: str) -> float:
        pause = self.failed(reason)
        self._become(State.PAUSING)
        self._on_failed(pause)
        return pause

    def close(self) -> None:
        """It is started no more. Idempotent."""
        if self.state is not State.CLOSED:
            self._become(State.CLOSED)
        if self._restart is not None:
            self._restart.cancel()
