"""One worker of a model, with its scheduler and the address spaces of the inferlets that are placed on it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

from pie_inference.protocol import ModelDescription, WaveDone

from ..errors import WorkerError, WorkerUnavailable
from ..ids import Owner
from ..inference_client.interface import InferenceClient
from ..resources.address_space import AddressSpace
from ..resources.quotas import Ledgers
from ..scheduling import (
    Closed,
    Ending,
    Event,
    Opened,
    Quiet,
    Reason,
    Scheduler,
    SchedulerStatistics,
    Turn,
    WorkerLost,
)
from ..tenants.tenant import DEFAULT_STANDING, Standing
from .placement import Load
from .restarts import Outage, Restarts

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0
"""Inferlets wait for a worker that is started again within this time. If it takes longer, they are told so and end."""


class State(StrEnum):
    """Where a replica is in its life."""

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


class Replica:
    """Takes turns of its scheduler and carries them out."""

    def __init__(
        self,
        client: InferenceClient,
        make_scheduler: Callable[[ModelDescription], Scheduler],
        ledgers: Ledgers,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` and `sleep` are in seconds."""
        self.state = State.STARTING
        self.restarts = 0
        self.description: ModelDescription
        self._on_results: Callable[[], None] = _ignore
        self._wake: Callable[[], None] = _ignore
        self._client = client
        self._make_scheduler = make_scheduler
        self._ledgers = ledgers
        self._scheduler: Scheduler
        self._events: list[Event] = []  # for the next turn
        self._spaces: dict[Owner, AddressSpace] = {}
        self._last_turn: Turn | None = None  # of a worker that was lost
        self.deadline: float | None = None  # for the next turn
        self._clock = clock
        self._sleep = sleep
        self._restarts = Restarts()
        self._restart: asyncio.Task[None] | None = None
        client.on_wave_done = self._on_wave_done
        client.on_lost = self._on_lost

    def listen(self, on_results: Callable[[], None], wake: Callable[[], None]) -> None:
        """`on_results` is called when the worker has answered or is lost: it is time for a turn. `wake` is called when
        a turn is due soon."""
        self._on_results, self._wake = on_results, wake

    # ---- life ----

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"a replica that is {self.state} cannot be {state}"
        self.state = state

    async def start(self) -> None:
        """Waits for the worker; raises WorkerUnavailable."""
        self._serve((await self._client.start()).models[0])

    def _serve(self, description: ModelDescription) -> None:
        self._become(State.SERVING)
        self._restarts.serves(self._clock())
        self.description = description
        self._scheduler = self._make_scheduler(description)

    async def close(self) -> None:
        """Ends the worker. Idempotent."""
        if self.state is not State.CLOSED:
            self._become(State.CLOSED)
        if self._restart is not None:
            self._restart.cancel()
        await self._client.close()

    # ---- inferlets ----

    @property
    def can_serve(self) -> bool:
        """Whether it takes inferlets, now or soon."""
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

    def load(self) -> Load:
        """What placement looks at."""
        free = self._scheduler.free_pages if self.state is State.SERVING else 0
        return Load(self.state is State.SERVING, len(self._spaces), free)

    def open(self, owner: Owner, created: float, standing: Standing = DEFAULT_STANDING) -> AddressSpace:
        """Places an inferlet here. `created` is a time in seconds: when memory runs out, it says which one is older."""
        ledger = self._ledgers.of(owner, standing.tenant)
        space = AddressSpace(owner, self.description, ledger, self._events.append)
        self._spaces[owner] = space
        self._events.append(Opened(owner, created, standing))
        return space

    def release(self, owner: Owner) -> bool:
        """Frees what an inferlet holds here, with the next turn. False if it holds nothing."""
        if self._spaces.pop(owner, None) is None:
            return False
        self._events.append(Closed(owner))
        self._wake()
        return True

    # ---- turns ----

    def turn(self, quiet: bool) -> Turn | None:
        """A turn with what has happened; `quiet`: every inferlet waits, so no wave has to wait for one. None while the
        worker is away: what happens meanwhile waits for the next one."""
        if self._last_turn is not None:
            turn, self._last_turn = self._last_turn, None
            self.deadline = None
            return turn
        if self.state is not State.SERVING or not (quiet or self._events):
            return None
        try:
            turn = self._scheduler.turn(self._clock(), self._take_events(quiet))
        except WorkerError as error:
            self._on_lost(str(error))
            return self.turn(quiet)
        self.deadline = turn.deadline
        for wave in turn.waves:
            self._client.send(wave)
        self._tell(turn)
        return turn

    def _take_events(self, quiet: bool) -> list[Event]:
        events = self._events.copy()
        self._events.clear()  # in place: address spaces append to it
        if quiet:
            events.append(Quiet())
        return events

    def _tell(self, turn: Turn) -> None:
        """Keeps address spaces up to date."""
        for progress in turn.progress:
            if space := self._spaces.get(progress.owner):
                space.progressed(progress.oldest, progress.taken, progress.returned)
        for completion in turn.completions:
            if space := self._spaces.get(completion.owner):
                space.answered(completion.future, completion.value)
        for ending in turn.endings:
            if space := self._spaces.pop(ending.owner, None):
                space.end(ending.error)

    def _on_wave_done(self, done: WaveDone) -> None:
        self._events.append(done)
        self._on_results()

    # ---- losing the worker ----

    def _on_lost(self, reason: str) -> None:
        """Ends what has state on the worker, and restarts it."""
        if self.state is not State.SERVING:
            return  # it is lost already
        pause = self._restarts.failed(self._clock(), reason)
        when = f"is started again in {pause:.0f} s: launch again then" if pause else "restarts: launch again"
        lost = WorkerLost(f"the worker of model {self.description.name} died ({reason}); it {when}")
        turn = self._scheduler.turn(self._clock(), [*self._take_commands(), lost])
        ended = {ending.owner for ending in turn.endings}
        error = WorkerError(lost.message)
        others = tuple(Ending(owner, Reason.LOST, error) for owner in self._spaces if owner not in ended)
        self._last_turn = turn._replace(endings=(*turn.endings, *others))
        self._tell(self._last_turn)
        log.warning(lost.message)
        self._become(State.PAUSING if pause else State.RESTARTING)
        self._restart = asyncio.get_running_loop().create_task(self._restart_worker(pause))
        self._on_results()

    def _take_commands(self) -> list[Event]:
        """What inferlets did before they could know of the loss."""
        return [event for event in self._take_events(False) if not isinstance(event, WaveDone)]

    async def _restart_worker(self, pause: float) -> None:
        """Tries until it succeeds."""
        while self.state is not State.SERVING:
            if pause:
                await self._sleep(pause)
                self._become(State.RESTARTING)
            pause = await self._try_restart()
        self._wake()

    async def _try_restart(self) -> float:
        """Seconds to wait before the next try, if this one fails."""
        self._restarts.try_begins()
        try:
            self._serve((await self._client.restart()).models[0])
        except WorkerUnavailable as error:
            return self._restart_failed(str(error))
        except Exception as error:  # no code awaits this task: inferlets would wait forever
            return self._restart_failed(f"the worker did not restart: {error!r}")
        self.restarts += 1
        log.info("a worker of model %s serves again", self.description.name)
        return 0.0

    def _restart_failed(self, reason: str) -> float:
        """Ends what waits for the worker, if it will have to wait for long."""
        pause = self._restarts.failed(self._clock(), reason)
        self._become(State.PAUSING)
        message = f"a worker of model {self.description.name} does not serve: {self.outage}"
        log.error(message)
        if pause > PATIENCE_SECONDS:
            self._end_all(WorkerError(message))
            self._wake()
        return pause

    def _end_all(self, error: WorkerError) -> None:
        """Ends all inferlets that are placed here."""
        endings = tuple(Ending(owner, Reason.LOST, error) for owner in self._spaces)
        if endings:
            earlier = self._last_turn or NOTHING
            self._last_turn = earlier._replace(endings=(*earlier.endings, *endings))
            self._tell(self._last_turn)
        self._events.clear()

    # ---- inspection ----

    def statistics(self) -> SchedulerStatistics:
        return self._scheduler.statistics()


NOTHING = Turn((), (), (), (), None)


def _ignore() -> None:
    """Nobody listens yet."""
