"""The memory of the process, by the inferlets that hold it.

Growth is charged to those that had a turn since the last reading, by the time that they took: who grows a lot takes
long. A reading takes as long as a short turn, so there is one for each READ_AFTER_SECONDS of turns.
"""

from __future__ import annotations

from ..host_memory import MemoryMeter
from .relations.children import Kin

READ_AFTER_SECONDS = 0.001
"""Processor time of guests between two readings. In it a guest cannot touch more than a few megabytes."""
LEAST_SECONDS = 1e-6
"""Counted for a turn whose time cannot be measured."""


class MemoryUse:
    """Belongs to the thread that runs the inferlets."""

    def __init__(self) -> None:
        self._meter = MemoryMeter()
        self._turns: list[tuple[Kin, float]] = []  # since the last reading
        self._seconds = 0.0

    @property
    def resident(self) -> int:
        """Bytes that the process held at the last reading."""
        return self._meter.resident

    def charge(self, inferlet: Kin, seconds: float) -> None:
        """The inferlet had a turn of so much processor time."""
        seconds = max(seconds, LEAST_SECONDS)
        self._turns.append((inferlet, seconds))
        self._seconds += seconds
        if self._seconds >= READ_AFTER_SECONDS:
            self.settle()

    def settle(self) -> None:
        """Reads, and charges the growth to those who had turns; to nobody if none had."""
        growth = self._meter.growth()
        for inferlet, seconds in self._turns:
            inferlet.grew(int(growth * seconds / self._seconds))
        self._turns.clear()
        self._seconds = 0.0

    def settle_if_idle(self) -> None:
        """What has grown since no inferlet had a turn is nobody's."""
        if not self._turns:
            self._meter.growth()

    def close(self) -> None:
        """Idempotent."""
        self._meter.close()
