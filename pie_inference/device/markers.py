"""Marks in the stream of a device, which tell the host how far the device has come."""

from __future__ import annotations

import torch


def mark_stream(device: torch.device) -> torch.cuda.Event | None:
    """Marks the work launched so far; None on a CPU, where all launched work is done."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
