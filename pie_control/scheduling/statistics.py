"""What the scheduler counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pie_control.resources.pool import PoolUsage

from .forward_batch import ForwardBatch
from .waves import Wave


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Counts since the start, and the state now."""

    inferlets: int
    queues_waiting: int
    commands_waiting: int
    waves_in_flight: int
    waves: int
    commands: dict[str, int]  # dispatched, by kind of batch; a split forward counts once for each part
    batches: dict[str, int]  # by kind of batch
    input_tokens: int  # of all forward batches
    worker_seconds: float
    evictions: int
    pages: PoolUsage
    embeds: PoolUsage
    token_slots: PoolUsage


class Counts:
    """Running counts."""

    def __init__(self) -> None:
        self.waves = 0
        self.input_tokens = 0
        self.seconds = 0.0
        self.commands: Counter[str] = Counter()
        self.batches: Counter[str] = Counter()

    def add(self, wave: Wave) -> None:
        self.waves += 1
        for batch in wave.batches:
            self.batches[batch.name] += 1
            self.commands[batch.name] += len(batch.commands)
            if isinstance(batch, ForwardBatch):
                self.commands[batch.name] += len(batch.parts)
                self.input_tokens += batch.tokens
