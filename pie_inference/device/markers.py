"""Marks in the stream of a device, which tell the host how far the device has come."""

from __future__ import annotations

from typing import Protocol

import torch


class Marker(Protocol):
    """A place in the stream of a device; `torch.cuda.Event` is one."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def synchronize(self) -> None:
        """Waits until the device has passed it. Raises RuntimeError if earlier work failed on the device."""


def mark_stream(device: torch.device) -> Marker | None:
    """Marks the work launched so far; None on a CPU, where all launched work is done."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
