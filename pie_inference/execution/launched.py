"""Waves under way: a GPU computes behind the host's back, so a wave is launched, and its results are read later.

Everything that a wave does on a GPU is in the order of one stream; uploads come from pinned memory and nothing waits
for the device until the results. So the host prepares the next wave while this one runs. On a CPU a launched wave is
done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from ..protocol import Result


@dataclass(frozen=True)
class PendingResult:
    """A result whose numbers may still be on their way. `build` is called once the wave is done."""

    build: Callable[[], Result]


Outcome = Result | PendingResult
"""What a handler returns."""


class Marker(Protocol):
    """A place in the stream of a device; `torch.cuda.Event` is one."""

    def query(self) -> bool:
        """Whether the device has come past it."""

    def synchronize(self) -> None:
        """Waits until it has. Raises RuntimeError where work before it failed on the device."""


@dataclass(frozen=True)
class LaunchedWave:
    """A wave whose batches are all launched, or failed."""

    wave: int
    started: float  # time.perf_counter
    outcomes: tuple[Outcome, ...]
    end: Marker | None  # None: it is done

    @property
    def is_done(self) -> bool:
        """Whether `results` answers at once."""
        return self.end is None or self.end.query()

    def results(self) -> tuple[Result, ...]:
        """Waits for the device. Raises RuntimeError where its work failed there: the device is then lost."""
        if self.end is not None:
            self.end.synchronize()
        return tuple(one.build() if isinstance(one, PendingResult) else one for one in self.outcomes)


def mark_stream(device: torch.device) -> Marker | None:
    """Marks what has been launched so far; None on a CPU, where all is done."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
