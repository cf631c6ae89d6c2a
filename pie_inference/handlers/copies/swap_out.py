"""Copies pages to the host's memory, with the states that hang on them."""

from __future__ import annotations

from ...execution.served_model import ServedModel
from ...protocol import SwapOut


def swap_out(served: ServedModel, batch: SwapOut) -> None:
    served.host_states.swap_out(batch)
    served.host_pages.swap_out(batch.pages, batch.host_pages)
