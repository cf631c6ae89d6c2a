"""Says where the last state of a text is, from which forwards may go on."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.ranges import parse_ranges

from ..kind import Call


def issue(space: AddressSpace, queue: int, context: Sequence[int], length: int) -> int:
    """The number of tokens before that place, at most `length`; 0: there is none. `context`: pages as in `forward`.
    Raises NotFound, InvalidArgument."""
    space.check_queue(queue)
    seen, _ = space.pages.all_tokens(parse_ranges(context, "context page"))
    return space.states.find(seen.intervals, length)


CALL = Call(__name__, issue)
