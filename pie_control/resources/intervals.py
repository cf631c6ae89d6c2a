"""Intervals of slots: (first, behind the last), in the order in which tokens stand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .ranges import Range


def append_interval(intervals: list[Range], start: int, stop: int) -> None:
    """Adds an interval behind the others; it becomes one with the last if they adjoin."""
    if intervals and intervals[-1][1] == start:
        start = intervals.pop()[0]
    intervals.append((start, stop))


def join_intervals(left: Sequence[Range], right: Sequence[Range]) -> tuple[Range, ...]:
    """One sequence of intervals; adjoining ones become one."""
    if len(left) == 1 == len(right) and left[0][1] == right[0][0]:
        return ((left[0][0], right[0][1]),)
    joined = list(left)
    for start, stop in right:
        append_interval(joined, start, stop)
    return tuple(joined)


def take_intervals(intervals: Sequence[Range], begin: int, end: int) -> tuple[Range, ...]:
    """The part from the `begin`-th to the `end`-th slot of the intervals."""
    taken: list[Range] = []
    for start, stop in intervals:
        length = stop - start
        if begin < length and end > 0:
            taken.append((start + max(begin, 0), start + min(end, length)))
        begin -= length
        end -= length
    return tuple(taken)


def intervals_of(slots: NDArray[np.int64]) -> tuple[Range, ...]:
    """Ascending runs of a list of slots."""
    if not len(slots):
        return ()
    breaks = np.flatnonzero(np.diff(slots) != 1) + 1
    starts = slots[np.concatenate([[0], breaks])].tolist()
    stops = (slots[np.concatenate([breaks - 1, [len(slots) - 1]])] + 1).tolist()
    return tuple(zip(starts, stops, strict=True))


def slots_in(intervals: Sequence[Range]) -> NDArray[np.int64]:
    """All slots of intervals, in order; there may be many intervals."""
    bounds = np.array(intervals, np.int64).reshape(-1, 2)
    lengths = bounds[:, 1] - bounds[:, 0]
    ends = np.cumsum(lengths)
    shifts = np.repeat(bounds[:, 0] - ends + lengths, lengths)
    slots: NDArray[np.int64] = np.arange(len(shifts)) + shifts
    return slots
