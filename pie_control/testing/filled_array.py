"""Memory of the fake model, which knows what was written."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pie_inference.protocol import Array

Hashes = NDArray[np.uint64]


class FilledArray:
    """Numbers that must be written before they are read."""

    def __init__(self, what: str, size: int) -> None:
        self.what = what
        self.values = np.zeros(size, np.uint64)
        self.filled = np.zeros(size, np.bool_)

    def read(self, indices: Array) -> Hashes:
        self._check_range(indices)
        if not self.filled[indices].all():
            raise ValueError(f"{self.what} {indices[~self.filled[indices]][0]} is read before it was filled")
        values: Hashes = self.values[indices]
        return values

    def write(self, indices: Array, values: Array) -> None:
        self._check_range(indices)
        if len(np.unique(indices)) != len(indices):
            raise ValueError(f"one {self.what} is written twice in one batch")
        self.values[indices] = values
        self.filled[indices] = True

    def filled_among(self, indices: Array) -> NDArray[np.bool_]:
        self._check_range(indices)
        filled: NDArray[np.bool_] = self.filled[indices]
        return filled

    def _check_range(self, indices: Array) -> None:
        if len(indices) and not (indices.min() >= 0 and indices.max() < len(self.values)):
            raise ValueError(f"{self.what} numbers are 0 to {len(self.values) - 1}")
