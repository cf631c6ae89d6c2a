"""Rows of many decode runs, column by column: what they add to the batches of a wave behind the commands in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .sampler import Bias
from .scores import Scores

Numbers = NDArray[np.int32]


class EmbedColumns(NamedTuple):
    """One token for each row."""

    embeds: Numbers
    tokens: Numbers  # -(s + 1): that in token slot s


class ForwardColumns(NamedTuple):
    """One input token and one output for each row; keys as in the message `Forward`."""

    embeds: Numbers
    positions: Numbers
    slots: Numbers
    outputs: Numbers
    key_counts: Numbers  # runs of keys of each row
    pages: Numbers
    begins: Numbers
    ends: Numbers
    dense: NDArray[np.bool_]
    adapters: Numbers | None = None  # -1: none; None: no row has one
    states: tuple[Numbers, Numbers] | None = None  # slots of those that rows begin with and leave; None: no model's


class MatcherColumns(NamedTuple):
    """Matchers of rows that sample, as the message `Sample` has them."""

    matchers: NDArray[np.int64]
    matched: Numbers
    start_counts: Numbers  # bytes of `starts`
    starts: bytes
    ended: NDArray[np.int64]


class SampleColumns(NamedTuple):
    """One sample for each row."""

    embeds: Numbers
    token_slots: list[int]
    params: Mapping[str, NDArray[np.generic]]  # as `param_columns` makes them
    uniform: NDArray[np.float64]
    recent_counts: Numbers
    recent: Numbers
    allowed_rows: Numbers  # row in `allowed`, or -1
    allowed: Sequence[bytes]
    special: Sequence[tuple[Bias | None, int]] | None = None  # bias and alternatives of each row; None: no row has any
    grammars: MatcherColumns | None = None  # None: no row has a matcher


class RowsTold(NamedTuple):
    """What the worker told of rows: the token of each, whether its run is over, and scores of some."""

    tokens: NDArray[Any]
    over: NDArray[Any] | None  # None: no run is
    scores: dict[int, Scores]
