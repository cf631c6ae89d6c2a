"""How the rows of a batch choose among tokens, from its message."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ..protocol import Array, Sample, Verify, filled

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    """How N rows choose among tokens, float64 or int64 [N] each. It is on the host, which so knows what to compute
    without waiting for the device."""

    temperature: Floats  # 0 is greedy
    top_k: Integers  # 0: all
    top_p: Floats  # 1: all
    min_p: Floats  # 0: all
    typical_p: Floats  # 1: all
    uniform: Floats  # in [0, 1)

    def __getitem__(self, rows: Integers) -> Choice:
        return Choice(*(getattr(self, field.name)[rows] for field in fields(self)))


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
