"""What forwards see of pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pie_control.record import Record
from pie_control.resources.ranges import Range, are_sound, total_length

NO_STATE = -1
"""In place of an address of a state: the text begins, or its state is dropped."""
Numbers = NDArray[np.int32]


class Mask(Record, frozen=True, tag=None):
    """Ranges of keys that each query of a forward sees: the tokens of its context, then its inputs. In the order of the
    queries. `later`: a query sees inputs behind its own."""

    rows: Numbers  # queries
    begins: Numbers
    ends: Numbers
    later: bool

    def part(self, begin: int, end: int) -> Mask:
        """The part for the queries `begin` .. `end`."""
        some = slice(*np.searchsorted(self.rows, (begin, end)).tolist())
        return Mask(self.rows[some] - np.int32(begin), self.begins[some], self.ends[some], self.later)

    @property
    def fits(self) -> bool:
        """Whether it has a beginning and an end for each row."""
        return len(self.rows) == len(self.begins) == len(self.ends)


class Context(Record, frozen=True, tag=None):
    """Slots that a forward reads. `by_position`: a query sees only those at positions below its own; else, all; but
    with a `mask`, what this says."""

    intervals: tuple[Range, ...]  # virtual slots
    tokens: int
    by_position: bool = False
    mask: Mask | None = None
    states: tuple[int, int] | None = None
    """Addresses that the forward begins with and leaves, or NO_STATE; None: the model has none."""
    left: tuple[int, ...] = ()
    """Addresses of the states that it leaves behind its first inputs, too, one each, as far as these have memory."""

    @property
    def used_states(self) -> Sequence[Range]:
        """All of these addresses, as ranges."""
        return [(address, address + 1) for address in (*(self.states or ()), *self.left) if address != NO_STATE]

    @property
    def fits(self) -> bool:
        """Whether its parts fit together."""
        counted = are_sound(self.intervals) and self.tokens == total_length(self.intervals)
        if self.states or self.left:
            counted = counted and min((*(self.states or ()), *self.left)) >= NO_STATE
        return counted and (self.mask is None or self.mask.fits)


def pages_of(slots: Sequence[Range], page_size: int) -> Sequence[Range]:
    """The pages of intervals of slots."""
    return [(start // page_size, (stop - 1) // page_size + 1) for start, stop in slots]
