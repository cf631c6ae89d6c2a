"""Waves under way: a GPU computes behind the host's back, so a wave is launched, and its results are read later.

Everything that a wave does on a GPU is in the order of one stream; uploads come from pinned memory and nothing waits
for the device until the results. So the host prepares the next wave while this one runs. On a CPU a launched wave is
done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..device.markers import Marker
from ..protocol import Failure, Result


@dataclass(frozen=True)
class PendingResult:
    """A result whose numbers may still be on their way. `build` is called once the wave is done."""

    build: Callable[[], Result | None]


Outcome = Result | PendingResult | None
"""What a handler returns."""


def await_outcome(outcome: Outcome) -> Result | None:
    """The result, of a wave that is done."""
    return outcome.build() if isinstance(outcome, PendingResult) else outcome


@dataclass(frozen=True)
class LaunchedWave:
    """A wave whose batches are all launched, but for commands that failed."""

    wave: int
    started: float  # time.perf_counter
    outcomes: tuple[Outcome, ...]
    failures: tuple[Failure, ...]
    end: Marker | None  # None: it is done

    @property
    def is_done(self) -> bool:
        """Whether `results` answers at once."""
        return self.end is None or self.end.query()

    def results(self) -> tuple[Result | None, ...]:
        """Waits for the device. Raises RuntimeError where its work failed there: the device is then lost."""
        if self.end is not None:
            self.end.synchronize()
        return tuple(map(await_outcome, self.outcomes))
