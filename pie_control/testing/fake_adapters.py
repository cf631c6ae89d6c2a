"""Adapters of the fake model: each changes the keys of the tokens that run with it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pie_inference.protocol import AdapterLoaded, Forward, LoadAdapter

SPREAD = 0x9E3779B97F4A7C15


class FakeAdapters:
    """A folder is as good as what its adapter_config.json says; "bytes" is what the adapter takes."""

    def __init__(self) -> None:
        self._changes: dict[int, int] = {}

    def load(self, message: LoadAdapter) -> AdapterLoaded:
        """Loads an adapter, or says why it cannot."""
        path = Path(message.folder) / "adapter_config.json"
        try:
            text = path.read_bytes()
            size = int(json.loads(text).get("bytes", len(text)))
        except (OSError, ValueError, AttributeError) as error:
            return AdapterLoaded(message.number, error=f"{path.name}: unreadable: {getattr(error, 'strerror', error)}")
        self._changes[message.number] = zlib.crc32(text) * SPREAD % 2**64
        return AdapterLoaded(message.number, size)

    def drop(self, number: int) -> None:
        """Forgets an adapter. Idempotent."""
        self._changes.pop(number, None)

    def changes(self, batch: Forward) -> NDArray[np.uint64]:
        """What to combine with the key of each row. Raises ValueError."""
        if batch.adapters is None:
            return np.zeros(len(batch.q_slots), np.uint64)
        unknown = set(batch.adapters.tolist()) - self._changes.keys() - {-1}
        if unknown:
            raise ValueError(f"adapter {min(unknown)} is not loaded")
        changes = [self._changes.get(one, 0) for one in batch.adapters.tolist()]
        return np.repeat(np.array(changes, np.uint64), np.diff(batch.q_indptr))
