"""A lane for copies between device and host that runs beside the computation.

There are two sequences of work: compute queues kernels, in the order of calls; the lane queues copies. They meet only
in marks. On a CPU both are the same sequence, and a mark has no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Mark = torch.cuda.Event | None
"""A point in one of the sequences; None: it has passed."""


class CopyLane:
    """The lane, as seen from the side of compute. This one, of a CPU, runs copies at once."""

    def mark(self) -> Mark:
        """Marks all work that compute has queued so far."""
        return None

    def run(self, copy: Callable[[], None], after: Mark) -> Mark:
        """Queues a copy behind the lane's other copies and behind `after`; returns a mark at its end."""
        copy()
        return None

    def wait(self, mark: Mark) -> None:
        """Makes all work that compute queues from now on run after `mark`."""


class CudaLane(CopyLane):
    """A CUDA stream of its own beside the current one of `device`.

    The host never waits: marks are events, and streams wait for them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def mark(self) -> Mark:
        mark: Mark = torch.cuda.current_stream(self._device).record_event()
        return mark

    def run(self, copy: Callable[[], None], after: Mark) -> Mark:
        if after is not None:
            self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            copy()
        mark: Mark = self._stream.record_event()
        return mark

    def wait(self, mark: Mark) -> None:
        if mark is not None:
            torch.cuda.current_stream(self._device).wait_event(mark)


def make_lane(device: torch.device) -> CopyLane:
    """The lane for copies from and to `device`."""
    return CudaLane(device) if device.type == "cuda" else CopyLane()
