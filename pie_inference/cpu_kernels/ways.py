"""The products that a model on a CPU uses: the compiled kernels' or torch's own, oneDNN's. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Way = Literal["own", "torch"]
"""own: the kernels of this package."""


@dataclass(frozen=True)
class Ways:
    """The way of each kind of product. A model keeps to it, however many rows a batch has: weights are packed for one
    way only."""

    linear: Way = "own"  # of linear layers that are not quantized
    quantized: Way = "own"
    low_rank: Way = "own"  # of adapters
    attention: Way = "own"


OWN = Ways()
