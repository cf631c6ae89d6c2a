"""Keeps the state of a text where it is: forwards go on from it without taking it along.

A change of the logical state only: it is about what was issued before, whether that has run or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.intervals import take_intervals
from pie_control.resources.ranges import Range, parse_ranges

from ..kind import Call


def issue(space: AddressSpace, queue: int, context: Sequence[int]) -> None:
    """`context`: pages as in `forward`. Raises NotFound, InvalidArgument (no token), InvalidState (no state there)."""
    space.check_queue(queue)
    space.states.keep(place_in(space, context))


def place_in(space: AddressSpace, context: Sequence[int], length: int | None = None) -> Sequence[Range]:
    """The slots of all tokens in pages, or of the first `length` ones. Raises NotFound, InvalidArgument."""
    seen, _ = space.pages.all_tokens(parse_ranges(context, "context page"))
    count = seen.tokens if length is None else length
    if not 0 < count <= seen.tokens:
        raise InvalidArgument(
            f"the context holds {seen.tokens} tokens, and a state is behind at least one, not {count}: name all pages "
            "of the text"
        )
    return take_intervals(seen.intervals, 0, count)


CALL = Call(__name__, issue)
