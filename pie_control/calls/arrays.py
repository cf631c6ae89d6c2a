"""Numbers of a batch, gathered in lists and typed arrays, as the arrays of its message; arrays of results as text."""

from __future__ import annotations

from array import array
from binascii import b2a_base64
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_control.resources.intervals import slots_in
from pie_control.resources.ranges import Range


def as_int32(values: Any) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def ends_of(lengths: Iterable[int]) -> NDArray[np.int32]:
    """Offsets of ragged rows: [0, l0, l0 + l1, ...]."""
    return as_int32([0, *accumulate(lengths)])


def offsets(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """Offsets of ragged rows, as `ends_of` gives them, of an array of lengths."""
    ends = np.zeros(len(lengths) + 1, np.int32)
    lengths.cumsum(out=ends[1:])
    return ends


def packed(numbers: NDArray[Any], dtype: str) -> str:
    """Base64 of the numbers as this type: a text that costs a Python guest next to nothing until it reads it."""
    return b2a_base64(numbers.astype(dtype, copy=False).data, newline=False).decode()


def join(one: NDArray[Any], more: NDArray[Any]) -> NDArray[Any]:
    """Both behind each other; where one is empty, it is the other one."""
    if not len(one):
        return more
    return np.concatenate((one, more)) if len(more) else one


def addresses(ranges: Sequence[Range]) -> Iterator[int]:
    return chain.from_iterable(range(first, last) for first, last in ranges)


MANY_INTERVALS = 32
"""From so many on, arrays are faster than a look at each."""


def append_slots(intervals: Sequence[Range], physical: array[int], page_size: int, into: array[int]) -> None:
    """Appends the physical slots of intervals of virtual ones; `physical` has the page of each address."""
    if len(intervals) >= MANY_INTERVALS:
        slots = slots_in(intervals)
        pages = np.frombuffer(physical, np.int32)[slots // page_size]
        into.frombytes((pages * page_size + slots % page_size).astype(np.int32).tobytes())
        return
    for start, stop in intervals:
        while start < stop:
            page = start // page_size
            end = min(stop, (page + 1) * page_size)
            shift = (physical[page] - page) * page_size
            if end == start + 1:
                into.append(start + shift)
            else:
                into.extend(range(start + shift, end + shift))
            start = end


class NotedEmbeds:
    """The embeds that commands of each queue read, or write, in a batch; sets are built only for queues with several
    commands in it."""

    def __init__(self) -> None:
        self.first: dict[Hashable, Sequence[Range]] = {}  # by the first command of a queue
        self._sets: dict[Hashable, set[int]] = {}

    def disjoint(self, queue: Hashable, *touched: Sequence[Range]) -> bool:
        """Whether no earlier command of the queue in this batch has noted one of the embeds."""
        if queue not in self.first:
            return True
        if queue not in self._sets:
            self._sets[queue] = set(addresses(self.first[queue]))
        written = self._sets[queue]
        return all(written.isdisjoint(addresses(ranges)) for ranges in touched)

    def note(self, queue: Hashable, ranges: Sequence[Range]) -> None:
        if queue in self._sets:
            self._sets[queue].update(addresses(ranges))
        elif queue in self.first:
            self._sets[queue] = {*addresses(self.first[queue]), *addresses(ranges)}
        else:
            self.first[queue] = ranges
