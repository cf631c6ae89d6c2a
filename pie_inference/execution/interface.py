"""The interface of a worker that runs waves, whole or as one rank of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..protocol import AdapterLoaded, DropAdapter, Failure, LoadAdapter, ModelDescription, RunWave, WaveDone
from .launched import LaunchedWave

Agree = Callable[[Failure], None]
"""How the ranks of a group agree on a failure: returns once all ranks have met the same failure. Raises RankLost if
they do not."""


def agree_alone(failure: Failure) -> None:
    """Agrees at once: there are no other ranks."""


class Load(Protocol):
    """An adapter that is being loaded beside the waves."""

    number: int

    @property
    def is_ready(self) -> bool:
        """Whether `install` returns without waiting for files."""

    def install(self) -> AdapterLoaded:
        """Puts the adapter in, for the waves that are launched later, or says why it cannot. Raises RankLost."""


class ServedWorker(Protocol):
    """One model: on one device, or on a group of ranks. Not thread-safe."""

    def describe(self) -> tuple[ModelDescription, ...]:
        """The models that `launch` accepts."""

    def launch(self, wave: RunWave) -> LaunchedWave:
        """Runs the batches in order, without waiting for a GPU; only commands at fault fail. Raises RankLost if the
        ranks of a group did not fail in the same place; the group cannot go on then."""

    def finish(self, launched: LaunchedWave) -> WaveDone:
        """Waits for the results of a wave. Finish waves in the order of their launches. Raises RuntimeError if the
        device failed; everything on it is lost then. `seconds` starts when the wave before was finished."""

    def run(self, wave: RunWave) -> WaveDone:
        """Launches a wave and waits for its results."""

    def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        """Loads an adapter for the waves that are launched later, or says why it cannot. Raises RankLost."""

    def begin_adapter(self, message: LoadAdapter) -> Load:
        """Begins to load an adapter, while waves go on. Install loads in the order in which they began."""

    def drop_adapter(self, message: DropAdapter) -> None:
        """Forgets an adapter, if it is loaded. Raises RankLost."""

    def forget(self) -> None:
        """Forgets what a control process has left that has gone: all adapters and matchers. No wave is under way.
        Raises RankLost."""

    @property
    def adapters(self) -> Sequence[int]:
        """The numbers of the adapters that are loaded."""


class Rank(ServedWorker, Protocol):
    """One rank's share of a model."""

    def launch(self, wave: RunWave, agree: Agree = agree_alone) -> LaunchedWave:
        """Like `ServedWorker.launch`; calls `agree` at each failure before it goes on."""
