"""Slots that a decode run will fill: nobody else may use them while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, starmap
from typing import NamedTuple

import numpy as np

from pie_control.errors import InvalidState
from pie_control.resources.intervals import append_interval, intervals_of, slots_in
from pie_control.resources.ranges import Range, total_length

from .pages import NOT_OWNED, PageTable
from .slots import EMPTY, RESERVED, UNBOUND, is_withheld


class Reservation(NamedTuple):
    """Slots that one decode run fills, in order."""

    own: tuple[Range, ...]  # intervals of virtual slots
    slots: Sequence[int]  # the same one by one
    withheld: Sequence[Range]  # these, and what is behind them in a page without memory: nobody else may use it
    unbound: Sequence[int]  # pages that had no memory when they were reserved


def reserve(table: PageTable, ranges: Sequence[Range], count: int) -> Reservation:
    """Reserves the next `count` slots in list order that are free, or have no memory yet. Raises NotFound,
    InvalidState."""
    table.check_owned(ranges)
    own, unbound = _regular(table, ranges, count) or _by_slot(table, ranges, count)
    size = table.page_size
    *before, (start, stop) = own
    page = (stop - 1) // size
    withheld = (*before, (start, (page + 1) * size if page in unbound[-1:] else stop))
    for first, last in withheld:
        table.positions[first:last] = RESERVED
    table.withheld += total_length(withheld) - len(unbound) * size
    slots = range(*own[0]) if len(own) == 1 else list(chain.from_iterable(starmap(range, own)))
    return Reservation(own, slots, withheld, unbound)


def _regular(table: PageTable, ranges: Sequence[Range], count: int) -> tuple[tuple[Range, ...], list[int]] | None:
    """The slots, and those of their pages that have no memory, in this order. None: there are too few, or a page on the
    way there is not as usual, tokens first and behind them what is free."""
    found: list[Range] = []
    unbound: list[int] = []
    size = table.page_size
    for page in table.behind_full(ranges):
        fill = table.fill[page]
        if fill == size:
            continue
        if fill < 0:
            return None
        start = page * size + fill
        rest = table.positions[start : (page + 1) * size].tolist() if table.withheld else ()
        if rest and rest[0] == UNBOUND:
            unbound.append(page)
        elif rest.count(EMPTY) < len(rest):
            return None
        stop = min(start + count, (page + 1) * size)
        append_interval(found, start, stop)
        count -= stop - start
        if not count:
            return tuple(found), unbound
    return None


def _by_slot(table: PageTable, ranges: Sequence[Range], count: int) -> tuple[tuple[Range, ...], list[int]]:
    """Finds the slots however pages look."""
    slots = table.slots_of(ranges)
    held = table.positions[slots]
    taken = slots[table.free_places(slots, (held == EMPTY) | (held == UNBOUND), count)]
    if len(taken) < count:
        raise InvalidState(
            f"a decode run of {count + 1} steps needs {count} free slots, its pages have {len(taken)}; "
            "reserve pages and name them behind the others, or run fewer steps"
        )
    pages = taken[table.positions[taken] == UNBOUND] // table.page_size
    return intervals_of(taken), list(dict.fromkeys(pages.tolist()))


def unreserve(table: PageTable, reservation: Reservation, filled: int) -> None:
    """A run has ended that filled the first slots: the others are free, but in pages that it has not reached, which
    have no memory still."""
    size, positions, unbound = table.page_size, table.positions, reservation.unbound
    reached = {slot // size for slot in reservation.slots[:filled]} if unbound else ()
    unreached = [page for page in unbound if page not in reached and positions[page * size] == RESERVED]
    for first, last in reservation.withheld:
        slots = positions[first:last]
        left = slots == RESERVED  # the others were filled, or given back
        slots[left] = EMPTY
        table.withheld -= int(np.count_nonzero(left))
    for page in unreached:
        withhold(table, page, 1)


def withhold(table: PageTable, first: int, count: int) -> None:
    """Pages that were just allocated have no memory yet."""
    table.positions[first * table.page_size : (first + count) * table.page_size] = UNBOUND
    table.withheld += count * table.page_size


def check_not_withheld(table: PageTable, slots: Sequence[Range]) -> None:
    """Raises InvalidState if one of these slots is reserved by a run, or has no memory yet."""
    bad = is_withheld(table.held_at(slots))
    if bad.any():
        raise InvalidState(
            f"slot {slots_in(slots)[int(bad.argmax())]} belongs to a decode run that goes on, or to a reserved page "
            "without memory: only runs write there"
        )


def fill_reserved(table: PageTable, slot: int, position: int) -> None:
    """The run that reserved a slot has filled it. Nothing happens if the page was given back."""
    page = slot // table.page_size
    fill = table.fill[page]
    if fill == NOT_OWNED:
        return
    table.withheld -= 1
    table.positions[slot] = position
    if fill == slot - page * table.page_size:
        table.fill[page] = fill + 1
        if position > table.top[page]:
            table.top[page] = position
    else:
        table.summarize((page,))
