"""What runs waves: a worker, whole or as one rank of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..protocol import Failure, ModelDescription, RunWave, WaveDone
from .launched import LaunchedWave

Agree = Callable[[Failure], None]
"""How the ranks of a group meet where something failed: returns once all have met the same failure. Raises RankLost
where they do not."""


def agree_alone(failure: Failure) -> None:
    """There are no other ranks."""


class ServedWorker(Protocol):
    """One model: on one device, or on a group of ranks. Not thread-safe."""

    def describe(self) -> tuple[ModelDescription, ...]:
        """The models that `launch` accepts."""

    def launch(self, wave: RunWave) -> LaunchedWave:
        """Runs the batches in order, on a GPU without waiting for it; only commands at fault fail. Raises
        RankLost where the ranks of a group did not fail alike; the group is then of no use any more."""

    def finish(self, launched: LaunchedWave) -> WaveDone:
        """Waits for a wave's results; waves finish in the order of their launches. Raises RuntimeError where the
        device failed: it is then lost with all it held. `seconds` counts from when the wave before was finished."""

    def run(self, wave: RunWave) -> WaveDone:
        """Launches a wave and waits for its results."""


class Rank(ServedWorker, Protocol):
    """One rank's share of a model."""

    def launch(self, wave: RunWave, agree: Agree = agree_alone) -> LaunchedWave:
        """Calls `agree` for each failure, before it goes on."""
