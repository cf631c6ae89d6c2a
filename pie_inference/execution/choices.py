"""How the rows of a batch choose, from its message."""

from __future__ import annotations

import numpy as np

from ..protocol import Array, Sample, Verify, filled
from .sampling import Choice


def choice_of(batch: Sample | Verify, commands: Array | None = None) -> Choice:
    """The choice of each row; `commands` [rows] says whose each row is, if a command has several."""

    def column(values: Array | None, kind: type[np.generic], value: float = 0.0) -> Array:
        each = filled(values, batch.count(), value).astype(kind)
        return each if commands is None else each[commands]

    return Choice(
        temperature=column(batch.temperature, np.float64),
        top_k=column(batch.top_k, np.int64),
        top_p=column(batch.top_p, np.float64, 1.0),
        min_p=column(batch.min_p, np.float64),
        typical_p=column(batch.typical_p, np.float64, 1.0),
        uniform=batch.uniform.astype(np.float64),
    )
