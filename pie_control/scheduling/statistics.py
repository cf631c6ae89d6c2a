"""What the scheduler counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pie_control.resources.pool import PoolUsage

from .answers import Wave


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Counts since the start, and the state now. Queues that wait are ready for a wave, starved of memory, or wait for
    other commands of their inferlet."""

    inferlets: int
    queues_waiting: int
    queues_ready: int
    queues_starved: int
    queues_in_flight: int  # with commands in waves in flight, but for decode runs
    waits_seconds: float  # since something began to wait, or the last wave was sent; 0: nothing waits
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
    states: PoolUsage  # of texts; none at a model that keeps keys and values alone
    token_slots: PoolUsage
    exports: int = 0  # that can be imported
    export_pages: int = 0  # of the used ones, those that nothing but an export holds
    page_size: int = 0  # tokens
    queues_held: int = 0  # that are ready, and whose tenant or key has spent its budget


class Counts:
    """Running counts. `on_sent` hear of each wave, `on_answered` of the seconds that the worker took for it."""

    def __init__(self) -> None:
        self.on_sent: list[Callable[[Wave], None]] = []
        self.on_answered: list[Callable[[float], None]] = []
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
        for hear in self.on_sent:
            hear(wave)

    def answered(self, seconds: float) -> None:
        """The worker took this long for a wave."""
        self.seconds += seconds
        for hear in self.on_answered:
            hear(seconds)

    def fields(self) -> dict[str, Any]:
        """Those of `SchedulerStatistics`."""
        return {
            "waves": self.waves,
            "commands": dict(self.commands),
            "batches": dict(self.batches),
            "input_tokens": self.input_tokens,
            "worker_seconds": self.seconds,
        }


class Lately:
    """The mean of the last measurements, newer ones counting more."""

    def __init__(self) -> None:
        self.mean = 0.0  # 0: nothing was measured

    def add(self, value: float) -> None:
        self.mean += (value - self.mean) / 8 if self.mean else value


class LinearFit:
    """A straight line through the last measurements of seconds over a size, newer ones counting more: what is `fixed`,
    and what each of the size costs. While sizes hardly differ, half of the mean counts as fixed."""

    def __init__(self) -> None:
        self.fixed = 0.0  # seconds
        self.each = 0.0
        self._weight = self._size = self._seconds = self._squares = self._products = 0.0
        self._alike = 0  # measurements in a row that say nothing of the slope

    @property
    def only(self) -> float | None:
        """The only size that was measured for long, so that it is time to measure another one; None if there is none
        such."""
        return self._size / self._weight if self._alike >= MEMORY // 2 else None

    @property
    def known(self) -> bool:
        return self._weight > 0

    def at(self, size: float) -> float:
        """Seconds to expect; 0 if nothing was measured."""
        return self.fixed + self.each * size

    def add(self, size: float, seconds: float) -> None:
        keep = 1 - 1 / MEMORY
        self._weight = self._weight * keep + 1
        self._size = self._size * keep + size
        self._seconds = self._seconds * keep + seconds
        self._squares = self._squares * keep + size * size
        self._products = self._products * keep + size * seconds
        self._fit()

    def _fit(self) -> None:
        size, seconds = self._size / self._weight, self._seconds / self._weight
        doubt = DOUBT * size * size
        variance = self._squares / self._weight - size * size
        covariance = self._products / self._weight - size * seconds
        self._alike = self._alike + 1 if variance < doubt else 0
        slope = (covariance + doubt * (1 - ASSUMED) * seconds / size) / (variance + doubt)
        self.each = min(max(slope, 0.0), seconds / size)
        self.fixed = seconds - self.each * size


MEMORY = 32
"""Measurements after which one counts a third."""
ASSUMED = 0.5
"""Share that counts as fixed as long as sizes hardly differ."""
DOUBT = 0.003
"""Variance of the sizes, relative to the square of their mean, up to which it says less than this assumption."""
