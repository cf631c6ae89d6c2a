"""Copies keys and values from slot to slot."""

from __future__ import annotations

from ..protocol import CopySlots
from ..served_model import ServedModel


def copy_slots(served: ServedModel, batch: CopySlots) -> None:
    served.cache.copy(batch.source, batch.target)
