"""Waves under way. A GPU computes while the host goes on, so a wave is launched first and its results are read later.

All work of a wave on a GPU is in one stream, in order. Uploads come from pinned memory, and only the results wait for
the device. So the host prepares the next wave while this one runs. On a CPU a launched wave is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..grammars.rows import Fault
from ..protocol import Array, Failure, Result

NOT_A_NUMBER = Fault(
    "the model's outputs are no numbers (NaN): its weights may have NaN or infinity; get the checkpoint's files again, "
    "or try another --dtype"
)

Faults = Sequence[tuple[int, Fault]]
"""Commands that failed although their batch ran, by their places."""


def without_numbers(commands: Array) -> Faults:
    """Faults of the commands whose outputs are NaN; one may be named several times."""
    return [(command, NOT_A_NUMBER) for command in np.unique(commands).tolist()]


def _none() -> Faults:
    return ()


@dataclass(frozen=True)
class PendingResult:
    """A result whose numbers may not have arrived yet. Both functions are called once the wave is done."""

    build: Callable[[], Result | None]
    faults: Callable[[], Faults] = _none


Outcome = Result | PendingResult | None
"""The return value of a handler."""


def await_outcome(outcome: Outcome) -> Result | None:
    """The result of an outcome, once its wave is done."""
    return outcome.build() if isinstance(outcome, PendingResult) else outcome


@dataclass(frozen=True)
class LaunchedWave:
    """A wave whose batches are all launched, except commands that failed. `failures` gives all that failed, once the
    wave is done."""

    wave: int
    started: float  # time.perf_counter
    outcomes: tuple[Outcome, ...]
    failures: Callable[[], tuple[Failure, ...]]
    end: torch.cuda.Event | None  # None: the wave is done

    @property
    def is_done(self) -> bool:
        """Whether `results` returns without waiting."""
        return self.end is None or bool(self.end.query())  # type: ignore[no-untyped-call]

    def results(self) -> tuple[Result | None, ...]:
        """Waits for the device. Raises RuntimeError if the work failed there; the device cannot be used any more
        then."""
        if self.end is not None:
            self.end.synchronize()
        return tuple(map(await_outcome, self.outcomes))
