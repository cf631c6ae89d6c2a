"""Masks of a forward batch, as the arrays of its message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pie_control.resources.tables.contexts import Mask
from pie_inference.protocol import Forward

from ..arrays import ends_of, join


def masks(of: Mapping[int, Mask], count: int) -> dict[str, Any]:
    """Of those of `count` sequences that have one, by their places."""
    lengths = [len(of[n].rows) if n in of else 0 for n in range(count)]
    ordered = [of[n] for n in sorted(of)]
    return {
        "masked": np.array([n in of for n in range(count)], np.bool_),
        "range_indptr": ends_of(lengths),
        "range_rows": np.concatenate([one.rows for one in ordered]),
        "range_begins": np.concatenate([one.begins for one in ordered]),
        "range_ends": np.concatenate([one.ends for one in ordered]),
    }


def more_without_masks(batch: Forward, count: int) -> dict[str, Any]:
    """The arrays of a batch, with further sequences that have none."""
    if batch.masked is None or batch.range_indptr is None:
        return {}
    ends = np.full(count, batch.range_indptr[-1], np.int32)
    return {
        "masked": join(batch.masked, np.zeros(count, np.bool_)),
        "range_indptr": join(batch.range_indptr, ends),
        "range_rows": batch.range_rows,
        "range_begins": batch.range_begins,
        "range_ends": batch.range_ends,
    }
