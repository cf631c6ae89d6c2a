"""Copies pages to the host's memory."""

from __future__ import annotations

from ...execution.served_model import ServedModel
from ...protocol import SwapOut


def swap_out(served: ServedModel, batch: SwapOut) -> None:
    served.host_pages.swap_out(batch.pages, batch.host_pages)
