"""One worker of a model, with its scheduler and the address spaces of the inferlets that are placed on it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
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

log = logging.getLogger(__name__)

MAX_RESTARTS = 5
RESTART_WINDOW_SECONDS = 60.0
"""A worker that dies more often than MAX_RESTARTS in this time stays down."""


class State(StrEnum):
    """Where a replica is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    RESTARTING = "restarting"
    DOWN = "down"  # for good
    CLOSED = "closed"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.SERVING, State.CLOSED}),
    State.SERVING: frozenset({State.RESTARTING, State.DOWN, State.CLOSED}),
    State.RESTARTING: frozenset({State.SERVING, State.DOWN, State.CLOSED}),
    State.DOWN: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}


class Replica:
    """Takes turns of its scheduler and carries them out."""

    def __init__(
        self, client: InferenceClient, make_scheduler: Callable[[ModelDescription], Scheduler], ledgers: Ledgers
    ) -> None:
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
        self.down = ""  # why it stays down
        self._losses: list[float] = []
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
        """Whether it takes inferlets, now or once it has restarted."""
        return self.state in (State.SERVING, State.RESTARTING)

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
        """A turn with what has happened; `quiet`: every inferlet waits, so waves are formed. None while the worker is
        away: what happens meanwhile waits for the next one."""
        if self._last_turn is not None:
            turn, self._last_turn = self._last_turn, None
            return turn
        if self.state is not State.SERVING or not (quiet or self._events):
            return None
        try:
            turn = self._scheduler.turn(time.monotonic(), self._take_events(quiet))
        except WorkerError as error:
            self._on_lost(str(error))
            return self.turn(quiet)
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
        name = self.description.name
        lost = WorkerLost(f"the worker of model {name} died ({reason}); it restarts: launch again")
        turn = self._scheduler.turn(time.monotonic(), [*self._take_commands(), lost])
        ended = {ending.owner for ending in turn.endings}
        error = WorkerError(lost.message)
        others = tuple(Ending(owner, Reason.LOST, error) for owner in self._spaces if owner not in ended)
        self._last_turn = turn._replace(endings=(*turn.endings, *others))
        self._tell(self._last_turn)
        self._restart_or_give_up(reason)
        self._on_results()

    def _take_commands(self) -> list[Event]:
        """What inferlets did before they could know of the loss."""
        return [event for event in self._take_events(False) if not isinstance(event, WaveDone)]

    def _restart_or_give_up(self, reason: str) -> None:
        now = time.monotonic()
        self._losses = [*(at for at in self._losses if at > now - RESTART_WINDOW_SECONDS), now]
        if len(self._losses) > MAX_RESTARTS:
            self._give_up(f"the worker died {len(self._losses)} times in a minute and stays down: {reason}")
        else:
            log.warning("the worker of model %s died (%s); it restarts", self.description.name, reason)
            self._become(State.RESTARTING)
            self._restart = asyncio.get_running_loop().create_task(self._restart_worker())

    async def _restart_worker(self) -> None:
        try:
            self._serve((await self._client.restart()).models[0])
            self.restarts += 1
            log.info("a worker of model %s serves again", self.description.name)
        except WorkerUnavailable as error:
            self._give_up(str(error))
        except Exception as error:  # no code awaits this task: inferlets would wait forever
            self._give_up(f"the worker did not restart: {error!r}")
        self._wake()

    def _give_up(self, reason: str) -> None:
        """Ends what waits for the worker: it will not come back."""
        log.error("a worker of model %s stays down: %s", self.description.name, reason)
        self.down = reason
        self._become(State.DOWN)
        error = WorkerError(reason)
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
