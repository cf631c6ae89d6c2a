"""Gives the state behind some tokens of a text back, kept or not: nothing goes on from there any more."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.kinds import STATES

from ..allocate.dealloc import give_back
from ..kind import Call
from .keep_state import place_in


def issue(space: AddressSpace, queue: int, context: Sequence[int], length: int) -> None:
    """`context`: pages as in `forward`. The memory comes back when the commands issued before were dispatched. Raises
    NotFound, InvalidArgument (no token, or fewer), InvalidState (no state there)."""
    space.check_queue(queue)
    if left := space.states.let_go(place_in(space, context, length)):
        give_back(space, STATES, left)


CALL = Call(__name__, issue)
