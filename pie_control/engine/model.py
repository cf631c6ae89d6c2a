"""A model and the replicas that serve it: which of them has which inferlet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from pie_inference.protocol import ModelDescription

from ..calls.exports.sharing import Fetch
from ..calls.kind import Bind, CloseQueue, Command, Release
from ..errors import WorkerError, WorkerUnavailable
from ..ids import Owner
from ..inference_client.interface import differences, with_least
from ..inferlets.model import SpaceEvent
from ..registry.entry import Entry
from ..scheduling import Closed, Ending, Event, Opened, Reason, SchedulerStatistics, Turn
from .adapters import Adapters
from .placement import place
from .replica import Replica
from .restarts import Outage


@dataclass(frozen=True)
class ReplicaStatistics:
    """Counts of one worker since it was started last, and how it is."""

    state: str
    restarts: int
    outage: Outage | None  # None: it serves
    scheduler: SchedulerStatistics


MOST_NOTES = 16
"""Notes and allocations of an inferlet that has issued no other command: with more, or when it gives something back, it
is placed."""


class Model:
    """Equal workers that serve one model. An inferlet uses one of them, from its first command that is no allocation to
    its end: this says whether it needs what one of them keeps."""

    def __init__(self, name: str, replicas: Sequence[Replica]) -> None:
        self.name = name
        self.replicas = replicas
        self.adapters = Adapters(name, replicas)
        self._told: ModelDescription
        self._described: Sequence[ModelDescription] = ()  # by the workers, when it was made
        self._placed: dict[Owner, Replica] = {}
        self._new: dict[Owner, list[Event]] = {}  # what inferlets did that have no place yet
        self._refused: list[Ending] = []  # inferlets that found no replica

    async def start(self) -> None:
        """Waits for all workers; raises WorkerUnavailable."""
        async with asyncio.TaskGroup() as tasks:
            for replica in self.replicas:
                tasks.create_task(replica.start())
        found = self.description
        if found.name != self.name:
            raise WorkerUnavailable(f"the worker of model {self.name} serves {found.name}: name them alike")

    @property
    def description(self) -> ModelDescription:
        return self.replicas[0].description

    @property
    def told(self) -> ModelDescription:
        """What inferlets may rely on, whichever worker they are placed on; the same object until one has changed."""
        found = [replica.description for replica in self.replicas]
        if found != self._described:
            self._described, self._told = found, with_least(found)
        return self._told

    @property
    def is_down(self) -> bool:
        """Whether no worker serves it, now or soon."""
        return not any(replica.life.can_serve for replica in self.replicas)

    def has_spare_pages(self, share: float) -> bool:
        """Whether a worker has so much of its KV pages for further inferlets."""
        return any(replica.has_spare_pages(share) for replica in self.replicas)

    def why_down(self) -> str:
        """What is known of a model that is down, and when a worker is started again."""
        outages = [outage for replica in self.replicas if (outage := replica.life.outage)]
        first = min(outages, key=lambda outage: outage.next_try_seconds, default=None)
        return f"model {self.name} has no worker: {first or 'the server stops'}"

    # ---- inferlets ----

    def take(self, host: int, entries: Mapping[Owner, Entry], events: Iterable[SpaceEvent]) -> None:
        """What inferlets of a host did, in order: the first command of one places it, the others go where it is. Those
        of an inferlet that has ended, or was ended here, are dropped. `entries`: the inferlets of the host. Raises
        ValueError for what cannot be."""
        placed = self._placed
        for event in events:
            owner, kind = event.owner, type(event)
            if owner not in entries:
                if kind is Opened or owner in placed or owner in self._new:
                    raise ValueError(f"host {host} speaks for inferlet {owner}, which it does not run")
            elif kind is Opened:
                self._open(Opened(owner, entries[owner].started, entries[owner].runs_as, host))
            elif host and isinstance(event, Command) and not event.fits(self.description):  # host 0 is this process
                raise ValueError(f"a {kind.__name__} of inferlet {owner} does not fit together")
            elif kind is Closed:
                self.close_inferlet(owner)
            elif replica := placed.get(owner):
                replica.take(event)
            elif owner in self._new:
                self._meet(event)

    def _open(self, opened: Opened) -> None:
        if self.is_down:  # its host did not know yet
            self._refuse(opened.owner)
        else:
            self._new[opened.owner] = [opened]

    def _refuse(self, owner: Owner) -> None:
        self._refused.append(Ending(owner, Reason.LOST, WorkerError(self.why_down())))

    def _meet(self, event: Any) -> None:
        """An inferlet that has no place did something."""
        done = self._new[event.owner]
        done.append(event)
        begins = isinstance(event, Command) and not isinstance(event, Bind)  # nobody is told of an allocation
        ends = isinstance(event, CloseQueue | Release) and any(isinstance(one, Bind) for one in done)
        if begins or ends or len(done) > MOST_NOTES:
            self._place(self._new.pop(event.owner), event if isinstance(event, Fetch) else None)

    def _place(self, events: Sequence[Any], wanted: Fetch | None) -> None:
        """`wanted`: the export that the inferlet asks for first, if it does."""
        opened, *others = events
        candidates = [replica for replica in self.replicas if replica.life.can_serve]
        loads = [replica.load(opened.standing, wanted) for replica in candidates]
        chosen = place(loads, is_copy=wanted is not None and wanted.text is not None)
        if chosen is None:
            self._refuse(opened.owner)
            return
        replica = self._placed[opened.owner] = candidates[chosen]
        replica.open(opened)
        for event in others:
            replica.take(event)

    def close_inferlet(self, owner: Owner) -> None:
        """Frees what an inferlet holds. Nothing happens if it holds nothing."""
        self._new.pop(owner, None)
        replica = self._placed.pop(owner, None)
        if replica is not None:
            replica.close_inferlet(Closed(owner))

    def turns(self) -> list[tuple[Replica, Turn]]:
        """Turns of the replicas in which something has happened."""
        turns = [(replica, turn) for replica in self.replicas if (turn := replica.turn()) is not None]
        if self._refused:
            refused = Turn(waves=(), completions=(), endings=tuple(self._refused), progress=(), deadline=None)
            turns.append((self.replicas[0], refused))
            self._refused.clear()
        for _, turn in turns:
            for ending in turn.endings:
                self._placed.pop(ending.owner, None)
        return turns

    def statistics(self) -> tuple[ReplicaStatistics, ...]:
        return tuple(
            ReplicaStatistics(str(one.life.state), one.life.restarts, one.life.outage, one.statistics())
            for one in self.replicas
        )

    async def close(self) -> None:
        """Ends the workers. Idempotent."""
        for replica in self.replicas:
            await replica.close()


def join(models: MutableMapping[str, Model], replicas: Iterable[Replica]) -> None:
    """Puts replicas that were started, and know their models only now, beside those that serve the same models. Raises
    WorkerUnavailable for one that is not like them."""
    for replica in replicas:
        name = replica.description.name
        others = models[name].replicas if name in models else ()
        if others and (different := differences(others[0].description, replica.description)):
            raise WorkerUnavailable(
                f"two workers of model {name} are not alike: {different} differ; give one of the models another name, "
                "as in `pie worker --model NAME=MODEL`"
            )
        models[name] = Model(name, [*others, replica])
