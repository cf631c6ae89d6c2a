"""The rows of the table of decode runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_control.calls.sampler import NUM_PARAMS

ROW = np.dtype(
    [
        ("serial", np.int64),  # 0: the row is free
        ("owner", np.int64),
        ("future", np.int64),
        ("service_class", np.int64),
        ("ready", np.bool_),  # to take a further step
        ("held", np.bool_),  # its tenant or key has spent its budget
        ("meter", np.int64),  # number of what counts for it
        ("steps", np.int32),
        ("taken", np.int32),  # of them
        ("known", np.int32),  # tokens
        ("wave", np.int64),  # that took the last step
        ("embed", np.int32),
        ("input", np.int32),
        ("token", np.int32),  # that the next step runs; -(s + 1): that in token slot s
        ("position", np.int32),  # of it
        ("slot", np.int32),  # of its key
        ("end", np.int32),  # of the keys, in their last page, with it
        ("left", np.int32),  # slots of this page
        ("keys", np.int32),  # runs of keys
        ("dense", np.bool_),
        ("begins", np.int32),  # slot of the state that the next step reads; -1: none
        ("leaves", np.int32),  # of the one that it leaves
        ("random", np.bool_),  # whether it needs random numbers
        ("masked", np.bool_),  # whether it may choose certain tokens only
        ("matched", np.bool_),  # whether it has a matcher
        ("adapter", np.int32),
        ("listed", np.int32),  # tokens that penalties count, at most
        ("params", np.float64, (NUM_PARAMS,)),
    ]
)


def fields_of(table: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """A view of each field: to take one from the table at each use takes as long as what is done with it."""
    return {name: table[name] for name in ROW.fields or ()}
