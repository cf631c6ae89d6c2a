"""Marks in the stream of a device, by which the host knows how far it has come."""

from __future__ import annotations

from typing import Protocol

import torch


class Marker(Protocol):
    """A place in the stream of a device; `torch.cuda.Event` is one."""

    def query(self) -> bool:
        """Whether the device has come past it."""

    def synchronize(self) -> None:
        """Waits until it has. Raises RuntimeError where work before it failed on the device."""


def mark_stream(device: torch.device) -> Marker | None:
    """Marks what has been launched so far; None on a CPU, where all is done."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
