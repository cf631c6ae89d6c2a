"""A model as inferlets see it: its description, its tokenizer, and the replicas that serve it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pie_inference.protocol import ModelDescription

from ..errors import WorkerError, WorkerUnavailable
from ..ids import Owner
from ..resources.address_space import AddressSpace
from ..scheduling import SchedulerStatistics
from ..services.tokenizer import Tokenizer
from ..tenants.tenant import DEFAULT_STANDING, Standing
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
        self.tokenizer: Tokenizer

    async def start(self) -> None:
        """Waits for all workers; raises WorkerUnavailable."""
        async with asyncio.TaskGroup() as tasks:
            for replica in self.replicas:
                tasks.create_task(replica.start())
        found = self.description
        if found.name != self.name:
            raise WorkerUnavailable(f"the worker of model {self.name} serves {found.name}: name them alike")
        self.tokenizer = Tokenizer(found.tokenizer, found.tokenizer_config, found.vocab_size)

    @property
    def description(self) -> ModelDescription:
        return self.replicas[0].description

    @property
    def is_down(self) -> bool:
        """Whether no worker serves it, now or soon."""
        return not any(replica.can_serve for replica in self.replicas)

    def why_down(self) -> str:
        """What is known of a model that is down, and when a worker is started again."""
        outages = [replica.outage for replica in self.replicas if replica.outage]
        first = min(outages, key=lambda outage: outage.next_try_seconds, default=None)
        return f"model {self.name} has no worker: {first or 'the server stops'}"

    def open(self, owner: Owner, created: float, standing: Standing = DEFAULT_STANDING) -> AddressSpace:
        """Places an inferlet. Raises WorkerError if no worker serves, now or soon."""
        candidates = [replica for replica in self.replicas if replica.can_serve]
        chosen = place([replica.load() for replica in candidates])
        if chosen is None:
            raise WorkerError(self.why_down())
        return candidates[chosen].open(owner, created, standing)

    def release(self, owner: Owner) -> None:
        """Frees what an inferlet holds."""
        for replica in self.replicas:
            if replica.release(owner):
                return

    def statistics(self) -> tuple[ReplicaStatistics, ...]:
        return tuple(
            ReplicaStatistics(str(one.state), one.restarts, one.outage, one.statistics()) for one in self.replicas
        )

    async def close(self) -> None:
        """Ends the workers. Idempotent."""
        for replica in self.replicas:
            await replica.close()
