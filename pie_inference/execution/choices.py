"""How the rows of a batch choose, from its message."""

from __future__ import annotations

import numpy as np

from ..protocol import Array, Sample, Verify
from .sampling import Choice


def choice_of(batch: Sample | Verify, commands: Array | None = None) -> Choice:
    """The choice of each row; `commands` [rows] says whose each row is, if a command has several."""

    def column(values: Array, kind: type[np.generic]) -> Array:
        return values.astype(kind) if commands is None else values.astype(kind)[commands]

    typical = batch.typical_p if batch.typical_p is not None else np.ones_like(batch.temperature)
    return Choice(
        temperature=column(batch.temperature, np.float64),
        top_k=column(batch.top_k, np.int64),
        top_p=column(batch.top_p, np.float64),
        min_p=column(batch.min_p, np.float64),
        typical_p=column(typical, np.float64),
        uniform=batch.uniform.astype(np.float64),
    )
