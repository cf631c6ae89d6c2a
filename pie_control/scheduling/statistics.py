"""What the scheduler counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pie_control.resources.pool import PoolUsage

from .waves import Wave


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Counts since the start, and the state now."""

    inferlets: int
    queues_waiting: int
    commands_waiting: int
    runs: int  # decode runs that are under way
    waves_in_flight: int
    waves: int
    commands: dict[str, int]  # dispatched, by call; a split forward counts once for each part
    batches: dict[str, int]  # by call
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
            name = batch.call.name
            self.batches[name] += 1
            self.commands[name] += batch.count
            self.input_tokens += batch.tokens


class Lately:
    """The mean of the last measurements, newer ones counting more."""

    def __init__(self) -> None:
        self.mean = 0.0  # 0: nothing was measured

    def add(self, value: float) -> None:
        self.mean += (value - self.mean) / 8 if self.mean else value
