"""Waves under way. A GPU computes while the host goes on, so a wave is launched first and its results are read later.

All work of a wave on a GPU is in one stream, in order. Uploads come from pinned memory, and only the results wait for
the device. So the host prepares the next wave while this one runs. On a CPU a launched wave is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..device.markers import Marker
from ..grammars.rows import Fault
from ..protocol import Failure, Result


@dataclass(frozen=True)
class PendingResult:
    """A result whose numbers may not have arrived yet. `build` is called once the wave is done. `faults`: commands that
    failed although the batch ran, by their places."""

    build: Callable[[], Result | None]
    faults: Sequence[tuple[int, Fault]] = ()


Outcome = Result | PendingResult | None
"""The return value of a handler."""


def await_outcome(outcome: Outcome) -> Result | None:
    """The result of an outcome, once its wave is done."""
    return outcome.build() if isinstance(outcome, PendingResult) else outcome


@dataclass(frozen=True)
class LaunchedWave:
    """A wave whose batches are all launched, except commands that failed."""

    wave: int
    started: float  # time.perf_counter
    outcomes: tuple[Outcome, ...]
    failures: tuple[Failure, ...]
    end: Marker | None  # None: the wave is done

    @property
    def is_done(self) -> bool:
        """Whether `results` returns without waiting."""
        return self.end is None or self.end.query()

    def results(self) -> tuple[Result | None, ...]:
        """Waits for the device. Raises RuntimeError if the work failed there; the device cannot be used any more
        then."""
        if self.end is not None:
            self.end.synchronize()
        return tuple(map(await_outcome, self.outcomes))
