"""Copies pages back from the host's memory, with the states that hang on them."""

from __future__ import annotations

from ...execution.served_model import ServedModel
from ...protocol import SwapIn


def swap_in(served: ServedModel, batch: SwapIn) -> None:
    served.host_states.swap_in(batch)
    served.host_pages.swap_in(batch.host_pages, batch.pages)
