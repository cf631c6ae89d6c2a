"""Waves, while somebody looks on: what was in them, and the tokens of each inferlet. As long as nobody does, no line
of this runs."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pie_control.engine.model import Model
from pie_control.engine.replica import Replica
from pie_control.ids import Owner
from pie_control.scheduling import Scheduler
from pie_control.scheduling.answers import Wave

from .deltas import WaveRow

KEPT = 64
"""Waves that a viewer may not have seen yet; of more, the newest are shown."""
GENERATING = frozenset({"sample", "verify"})
"""Calls whose commands choose a token at least. A `verify` counts as one."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A wave, with the inferlets of its steps of decode runs. `begin` is in seconds since the epoch."""

    number: int
    model: str
    worker: int
    begin: float
    seconds: float
    wave: Wave
    steps: list[Owner]

    def rows(self, batch: Any) -> list[Owner]:
        """The inferlets of the steps in a batch: a first step has none but in the last one."""
        return self.steps[len(self.steps) - batch.rows :]

    def row(self, shown: Collection[Owner]) -> WaveRow:
        """What a viewer is told who sees these inferlets."""
        commands = {}
        for batch in self.wave.batches:
            owners = [one.owner for one in batch.commands if one.owner in shown]
            owners += [owner for owner in self.rows(batch) if owner in shown]
            if owners:
                commands[batch.call.name] = owners
        total = sum(batch.count for batch in self.wave.batches)
        seconds = round(self.seconds, 6)
        return WaveRow(self.model, self.worker, self.begin, seconds, self.wave.tokens, total, commands)


class RecentWaves:
    """All waves of all models. Belongs to the thread of the control loop."""

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._viewers = 0
        self._watched: dict[Replica, _Watched] = {}
        self.waves: deque[Answered] = deque(maxlen=KEPT)
        self.number = 0
        """The number of the last wave."""
        self.run: Counter[Owner] = Counter()
        self.generated: Counter[Owner] = Counter()
        """Tokens by inferlet, since the first viewer came."""

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Somebody looks on."""
        self._viewers += 1
        self.watch()
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._leave()

    def watch(self) -> None:
        """Watches the schedulers that there are now: a worker that was started again has a new one."""
        for name, model in self._models.items():
            for worker, replica in enumerate(model.replicas, start=1):
                scheduler, watched = replica.scheduler, self._watched.get(replica)
                if scheduler is not None and (watched is None or watched.scheduler is not scheduler):
                    self._watched[replica] = _Watched(scheduler, self._hear(name, worker))

    def _leave(self) -> None:
        for watched in self._watched.values():
            watched.leave()
        self._watched.clear()
        for gathered in (self.waves, self.run, self.generated):
            gathered.clear()

    def _hear(self, model: str, worker: int) -> Callable[[Wave, list[Owner], float], None]:
        def answered(wave: Wave, steps: list[Owner], seconds: float) -> None:
            self.number += 1
            begin = round(time.time() - seconds, 6)
            found = Answered(self.number, model, worker, begin, seconds, wave, steps)
            self.waves.append(found)
            self._count(found)

        return answered

    def _count(self, answered: Answered) -> None:
        for batch in answered.wave.batches:
            rows = answered.rows(batch)
            if batch.tokens:
                self.run.update(rows)
                for command, size in zip(batch.commands, batch.sizes(), strict=False):
                    self.run[command.owner] += size
            if batch.call.name in GENERATING:
                self.generated.update(rows)
                self.generated.update(one.owner for one in batch.commands)


class _Watched:
    """Hears what the counts of a scheduler hear."""

    def __init__(self, scheduler: Scheduler, hear: Callable[[Wave, list[Owner], float], None]) -> None:
        self.scheduler = scheduler
        self._hear = hear
        self._unseen = scheduler.statistics().waves_in_flight  # sent before anybody looked
        self._in_flight: deque[tuple[Wave, list[Owner]]] = deque()
        scheduler.counts.on_sent.append(self._sent)
        scheduler.counts.on_answered.append(self._answered)

    def leave(self) -> None:
        """Hears nothing more."""
        self.scheduler.counts.on_sent.remove(self._sent)
        self.scheduler.counts.on_answered.remove(self._answered)

    def _sent(self, wave: Wave) -> None:
        steps = self.scheduler.runs.owners(wave.steps.rows) if wave.steps is not None else []
        self._in_flight.append((wave, steps))

    def _answered(self, seconds: float) -> None:
        if self._unseen:
            self._unseen -= 1
        else:
            self._hear(*self._in_flight.popleft(), seconds)
