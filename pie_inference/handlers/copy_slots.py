"""Copies keys and values from slot to slot."""

from __future__ import annotations

from ..execution.served_model import ServedModel
from ..protocol import CopySlots


def copy_slots(served: ServedModel, batch: CopySlots) -> None:
    served.cache.copy(batch.source, batch.target)
