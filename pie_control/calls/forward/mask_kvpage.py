"""Hides tokens of KV pages, and shows the others: for attention sinks, windows and eviction.

A change of the logical state only: forwards issued before see what they saw. A hidden token keeps its slot and its
position, and counts for nothing in the context of a forward.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pie_control.errors import InvalidArgument, InvalidState
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.ranges import parse_ranges, total_length
from pie_control.resources.tables import slots

from ..kind import Call


def issue(space: AddressSpace, queue: int, pages: Sequence[int], hidden: Sequence[int]) -> None:
    """`hidden`: ranges of slots, counted along the list of pages. Raises NotFound, InvalidArgument (behind the last
    slot), InvalidState (no token there)."""
    space.check_queue(queue)
    parsed, ranges = parse_ranges(pages, "KV page"), parse_ranges(hidden, "hidden slot")
    if not ranges and space.pages.all_shown(parsed):
        return
    held = space.pages.held_in(parsed)
    hide = np.zeros(len(held), np.bool_)
    for first, last in ranges:
        if last > len(held):
            raise InvalidArgument(
                f"hidden slot {last - 1} is not in the {total_length(parsed)} pages, which have {len(held)} slots: "
                "count slots along the list of pages, from 0 on"
            )
        hide[first:last] = True
    empty = hide > slots.is_token(held)
    if empty.any():
        raise InvalidState(f"slot {int(empty.argmax())} of the pages holds no token; hide filled slots only")
    seen = slots.shown(held)
    after = np.where(hide, slots.hidden(seen), seen)
    if (after != held).any():
        space.pages.rewrite(parsed, after)


CALL = Call(__name__, issue)
