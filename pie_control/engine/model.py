"""A model and the replicas that serve it: which of them has which inferlet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pie_inference.protocol import ModelDescription

from ..calls.kind import BulkyCommand
from ..errors import WorkerError, WorkerUnavailable
from ..ids import Owner
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


class Model:
    """Equal workers that serve one model. An inferlet uses one of them, from its first queue to its end."""

    def __init__(self, name: str, replicas: Sequence[Replica]) -> None:
        self.name = name
        self.replicas = replicas
        self.adapters = Adapters(name, replicas)
        self._placed: dict[Owner, Replica] = {}
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
    def is_down(self) -> bool:
        """Whether no worker serves it, now or soon."""
        return not any(replica.life.can_serve for replica in self.replicas)

    def why_down(self) -> str:
        """What is known of a model that is down, and when a worker is started again."""
        outages = [outage for replica in self.replicas if (outage := replica.life.outage)]
        first = min(outages, key=lambda outage: outage.next_try_seconds, default=None)
        return f"model {self.name} has no worker: {first or 'the server stops'}"

    # ---- inferlets ----

    def take(self, host: int, events: Iterable[Event]) -> None:
        """What inferlets of a host did, in order: the first event of one places it, the others go where it is. Those of
        an inferlet that was ended here meanwhile are dropped. Raises ValueError for what cannot be."""
        placed = self._placed
        for event in events:
            kind = type(event)
            if kind is Opened:
                self._open(event, host)  # type: ignore[arg-type]
            elif replica := placed.get(event.owner):  # type: ignore[union-attr]
                if kind is Closed:
                    self.close_inferlet(event.owner)  # type: ignore[union-attr]
                else:
                    if isinstance(event, BulkyCommand):
                        event.check(self.description)
                    replica.take(event)

    def _open(self, opened: Opened, host: int) -> None:
        candidates = [replica for replica in self.replicas if replica.life.can_serve]
        chosen = place([replica.load() for replica in candidates])
        if chosen is None:  # its host did not know yet
            self._refused.append(Ending(opened.owner, Reason.LOST, WorkerError(self.why_down())))
            return
        self._placed[opened.owner] = candidates[chosen]
        candidates[chosen].open(Opened(opened.owner, opened.created, opened.standing, host))

    def close_inferlet(self, owner: Owner) -> None:
        """Frees what an inferlet holds. Nothing happens if it holds nothing."""
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
