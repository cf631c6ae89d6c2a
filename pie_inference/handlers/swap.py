"""Moves pages between the device and the host's memory."""

from __future__ import annotations

from ..execution.served_model import ServedModel
from ..protocol import SwapIn, SwapOut


def swap_out(served: ServedModel, batch: SwapOut) -> None:
    served.host_pages.swap_out(batch.pages, batch.host_pages)


def swap_in(served: ServedModel, batch: SwapIn) -> None:
    served.host_pages.swap_in(batch.host_pages, batch.pages)
