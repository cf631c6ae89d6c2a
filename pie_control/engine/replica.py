"""One worker of a model, with its scheduler and the inferlets that are placed on it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Any

from pie_inference.protocol import AdapterLoaded, DropAdapter, LoadAdapter, ModelDescription, WaveDone

from ..calls.exports.sharing import Fetch
from ..errors import WorkerError, WorkerUnavailable
from ..ids import Owner
from ..inference_client.interface import InferenceClient, differences
from ..scheduling import (
    Closed,
    Ending,
    Event,
    HostQuiet,
    Opened,
    Reason,
    Scheduler,
    SchedulerStatistics,
    Turn,
    WorkerLost,
)
from ..tenants.tenant import Standing
from .life import PATIENCE_SECONDS, Life
from .placement import Load
from .restarts import LONGEST_PAUSE_SECONDS

log = logging.getLogger(__name__)


class Replica:
    """Takes turns of its scheduler and carries them out."""

    def __init__(
        self,
        client: InferenceClient,
        make_scheduler: Callable[[ModelDescription], Scheduler],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        longest_pause: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        """`longest_pause`: between two tries to start the worker again. It, `clock` and `sleep` are in seconds."""
        self.description: ModelDescription
        self.prepare: Callable[[Replica], Awaitable[None]] = _prepare_nothing
        """Called with a worker that has started again, before it serves."""
        self._on_results: Callable[[], None] = lambda: None
        self._wake: Callable[[], None] = lambda: None
        self._client = client
        self._make_scheduler = make_scheduler
        self._scheduler: Scheduler
        self._events: list[Event] = []  # for the next turn
        self._kept: dict[Owner, list[Event]] = {}  # what inferlets have done since the worker was lost
        self.take: Callable[[Any], None] = self._events.append
        """Takes what an inferlet that is placed here has done."""
        self._owners: dict[Owner, None] = {}  # in the order in which they were placed
        self._last_turn: Turn | None = None  # of a worker that was lost
        self._end = ""  # why one was lost before it served
        self.deadline: float | None = None  # for the next turn
        self._clock = clock
        self.life = Life("worker", self._start_again, self._restart_failed, clock, sleep, longest_pause)
        client.on_wave_done = self._on_wave_done
        client.on_lost = self._on_lost

    def listen(self, on_results: Callable[[], None], wake: Callable[[], None], on_state: Callable[[], None]) -> None:
        """`on_results` is called when the worker has answered or is lost: it is time for a turn. `wake` is called when
        a turn is due soon, `on_state` when the worker begins or ceases to serve."""
        self._on_results, self._wake, self.life.on_state = on_results, wake, on_state

    # ---- life ----

    async def start(self) -> None:
        """Waits for the worker; raises WorkerUnavailable."""
        self._end = ""
        self._serve((await self._client.start()).models[0])

    def _serve(self, description: ModelDescription) -> None:
        if self._end:
            raise WorkerUnavailable(self._end)
        self.description = description
        if description.lacks_pages:
            raise WorkerUnavailable(description.lacks_pages)
        self._scheduler = self._make_scheduler(description)
        self._events += chain.from_iterable(self._kept.values())
        self._kept.clear()
        self.take = self._events.append
        self.life.serve()

    async def close(self) -> None:
        """Ends the worker. Idempotent."""
        self.life.close()
        await self._client.close()

    async def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        """Loads an adapter for the waves that come. Raises WorkerUnavailable."""
        return await self._client.load_adapter(message)

    def drop_adapter(self, message: DropAdapter) -> None:
        """Forgets an adapter, behind the waves that were sent; and exports made with it, as another adapter may get its
        name."""
        self._client.drop_adapter(message)
        if self.life.serves:
            self.take(message)
            self._wake()

    # ---- inferlets ----

    def load(self, standing: Standing | None = None, wanted: Fetch | None = None) -> Load:
        """What placement looks at, for an inferlet that wants an export first."""
        if not self.life.serves:
            return Load(False, len(self._owners), 0)
        kept = 0 if standing is None or wanted is None else self._scheduler.kept_pages(standing, wanted)
        return Load(True, len(self._owners), self._scheduler.memory.free_pages, kept)

    def has_spare_pages(self, share: float) -> bool:
        """Whether so much of its memory is there for further inferlets, as far as is known."""
        return not self.life.serves or self._scheduler.memory.has_spare_pages(share)

    def open(self, opened: Opened) -> None:
        """Places an inferlet here."""
        self._owners[opened.owner] = None
        self.take(opened)

    def close_inferlet(self, closed: Closed) -> None:
        """An inferlet that is placed here has ended: frees what it holds, with the next turn."""
        self._owners.pop(closed.owner, None)
        if self.life.serves:
            self.take(closed)
            self._wake()
        else:
            self._kept.pop(closed.owner, None)

    # ---- turns ----

    def quiet(self, host: int, heard: int | None) -> bool:
        """Every inferlet of a host waits, with what it was told up to the turn of this number; None: with all. Whether
        that changes anything: it is time for a turn then."""
        if not self.life.serves or not (self._events or self._scheduler.waits_for(host)):
            return False
        self.take(HostQuiet(host, heard))
        return True

    def turn(self) -> Turn | None:
        """A turn with what has happened; the waves of it are sent. None if nothing has, and no deadline has come, or
        while the worker is away: what happens meanwhile waits for the next one."""
        if self._last_turn is not None:
            turn, self._last_turn = self._last_turn, None
            self.deadline = None
            return turn
        if not self.life.serves or not (self._events or self._is_due):
            return None
        try:
            turn = self._scheduler.turn(self._clock(), self._take_events(), self._client.send)
        except WorkerError as error:
            self._on_lost(str(error))
            return self.turn()
        except Exception as error:
            log.exception("a turn of model %s failed", self.description.name)
            self._on_lost(f"its scheduler failed, or a wave could not be sent: {error!r}")
            return self.turn()
        self.deadline = turn.deadline
        self._forget_ended(turn)
        return turn

    @property
    def _is_due(self) -> bool:
        return self.deadline is not None and self._clock() >= self.deadline

    def _take_events(self) -> list[Event]:
        events = self._events.copy()
        self._events.clear()  # in place: `take` appends to it
        return events

    def _forget_ended(self, turn: Turn) -> None:
        for ending in turn.endings:
            self._owners.pop(ending.owner, None)

    def _on_wave_done(self, done: WaveDone) -> None:
        """Nothing happens if its worker was lost: the next one has not sent that wave."""
        if self.life.serves:
            self._events.append(done)
            self._on_results()

    # ---- losing the worker ----

    def _keep(self, event: Any) -> None:
        """Takes what an inferlet has done while the worker is away. That may be for long, so nothing is kept of one
        that has ended, whether its host knows or not."""
        if event.owner in self._owners:
            self._kept.setdefault(event.owner, []).append(event)

    def _on_lost(self, reason: str) -> None:
        """Ends what has state on the worker, and restarts it."""
        if not self.life.serves:
            self._end = reason
            return
        pause = self.life.failed(reason)
        when = f"is started again in {pause:.0f} s: launch again then" if pause else "restarts: launch again"
        lost = WorkerLost(f"the worker of model {self.description.name} was lost ({reason}); it {when}")
        turn = self._last_words([*self._take_commands(), lost])
        self.take = self._keep
        ended = {ending.owner for ending in turn.endings}
        error = WorkerError(lost.message)
        others = tuple(Ending(owner, Reason.LOST, error) for owner in self._owners if owner not in ended)
        self._last_turn = turn._replace(endings=(*turn.endings, *others))
        self._forget_ended(self._last_turn)
        log.warning(lost.message)
        self.life.restart(pause)
        self._on_results()

    def _last_words(self, events: list[Event]) -> Turn:
        """The last turn of the scheduler of a lost worker; one that has failed has nothing to say."""
        try:
            return self._scheduler.turn(self._clock(), events)
        except Exception:
            log.exception("the scheduler of model %s failed", self.description.name)
            return NOTHING

    def _take_commands(self) -> list[Event]:
        """What inferlets did before they could know of the loss."""
        return [event for event in self._take_events() if not isinstance(event, WaveDone)]

    async def _start_again(self) -> None:
        self._end = ""
        model = (await self._client.restart()).models[0]
        if different := differences(self.description, model):
            raise WorkerUnavailable(
                f"its files have changed: {different} differ from what inferlets were told; restart the server"
            )
        await self.prepare(self)
        self._serve(model)
        log.info("a worker of model %s serves again", self.description.name)
        self._wake()

    def _restart_failed(self, pause: float) -> None:
        """Ends what waits for the worker, if it will have to wait for long."""
        message = f"a worker of model {self.description.name} does not serve: {self.life.outage}"
        log.error(message)
        if pause > PATIENCE_SECONDS:
            self._end_all(WorkerError(message))
            self._wake()

    def _end_all(self, error: WorkerError) -> None:
        """Ends all inferlets that are placed here."""
        endings = tuple(Ending(owner, Reason.LOST, error) for owner in self._owners)
        if endings:
            earlier = self._last_turn or NOTHING
            self._last_turn = earlier._replace(endings=(*earlier.endings, *endings))
            self._forget_ended(self._last_turn)
        self._kept.clear()

    # ---- inspection ----

    @property
    def scheduler(self) -> Scheduler | None:
        """The scheduler of the worker, while one serves: the next worker gets another one."""
        return self._scheduler if self.life.serves else None

    def statistics(self) -> SchedulerStatistics:
        return self._scheduler.statistics(self._clock())


NOTHING = Turn((), (), (), (), None)


async def _prepare_nothing(_: Replica) -> None:
    """It serves as it is."""
