"""Slots that a decode run will fill: nobody else may use them while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidState
from pie_control.resources.ranges import Range

from .pages import PageTable
from .slots import EMPTY, RESERVED, UNBOUND


class Reservation(NamedTuple):
    """Slots that one decode run fills, in order."""

    slots: list[int]  # virtual
    withheld: NDArray[np.int64]  # these, and what is behind them in pages without memory: nobody else may use it
    unbound: frozenset[int]  # pages that had no memory when they were reserved


def reserve(table: PageTable, ranges: Sequence[Range], count: int) -> Reservation:
    """Reserves the next `count` slots in list order that are free, or have no memory yet. Raises NotFound,
    InvalidState."""
    slots, size = table.slots_of(ranges), table.page_size
    held = table.positions[slots]
    taken = slots[table.free_places(slots, (held == EMPTY) | (held == UNBOUND), count)]
    if len(taken) < count:
        raise InvalidState(
            f"a decode run of {count + 1} steps needs {count} free slots, its pages have {len(taken)}; "
            "reserve pages and name them behind the others, or run fewer steps"
        )
    unbound = frozenset((taken[table.positions[taken] == UNBOUND] // size).tolist())
    behind = [np.arange(page * size, (page + 1) * size) for page in sorted(unbound)]
    withheld = np.concatenate((taken[table.positions[taken] == EMPTY], *behind))
    table.withheld += len(withheld) - len(unbound) * size
    table.positions[withheld] = RESERVED
    return Reservation(taken.tolist(), withheld, unbound)


def unreserve(table: PageTable, reservation: Reservation, filled: int) -> None:
    """A run has ended that filled the first slots: the others are free, but in pages that it has not reached, which
    have no memory still."""
    slots, size = reservation.withheld, table.page_size
    slots = slots[table.positions[slots] == RESERVED]  # the others were filled, or given back
    unreached = reservation.unbound.difference([slot // size for slot in reservation.slots[:filled]])
    held = [page for page in unreached if table.positions[page * size] == RESERVED]
    table.positions[slots] = EMPTY
    for page in held:
        table.positions[page * size : (page + 1) * size] = UNBOUND
    table.withheld -= len(slots) - len(held) * size
