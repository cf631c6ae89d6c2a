"""Keeps the first slots of pages and frees those behind for new tokens. (Not in the paper: it drops what run-ahead
computed past a stop.)

A change of the logical state only: commands issued before still see the tokens, those issued later do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.intervals import take_intervals
from pie_control.resources.ranges import parse_ranges, total_length

from ..kind import Call
from .dealloc import drop_states


def issue(space: AddressSpace, queue: int, pages: Sequence[int], keep: int) -> None:
    """`keep` slots, counted along the list of pages. Raises NotFound, InvalidArgument, InvalidState (a decode run that
    goes on sees what would be emptied, or its page is sealed)."""
    space.check_queue(queue)
    parsed = parse_ranges(pages, "KV page")
    if keep < 0:
        raise InvalidArgument(f"keep is {keep}; it must not be negative")
    space.pages.check_owned(parsed)
    if space.runs or space.pages.sealed:
        emptied = space.pages.filled_behind(parsed, keep)
        space.runs.check_emptied(emptied)
        space.pages.check_unsealed(emptied)
    shortened = space.pages.trim(parsed, keep)
    space.hazards.trimmed(shortened, space.seq)
    if space.states.owned:
        size, count = space.model.page_size, total_length(parsed)
        drop_states(space, take_intervals([(first * size, last * size) for first, last in parsed], keep, count * size))


CALL = Call(__name__, issue)
