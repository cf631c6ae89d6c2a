"""The step behind the last one of a queue that read a distribution (fused.wit).

A program that looks at every distribution names the next token and nothing else: its lists are those of the step
before.
"""

from __future__ import annotations

from pie_control.errors import InvalidState
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.tables.contexts import Context

from ..adapters import check_adapter
from ..forward import forward
from ..kind import Call
from ..output_text.get_next_dist import Dists, result_bytes
from .last_step import MOST_NUMBERS, LastStep, Place
from .step import DistStep, Way


def last_step(space: AddressSpace, queue: int) -> LastStep:
    """The step from which the next one goes on. Raises NotFound, InvalidState."""
    found: LastStep | None = space.last_steps.get(queue)
    if found is None:
        space.check_queue(queue)
        raise InvalidState(
            f"queue {queue} has had no step to go on from: begin with a `forward` of tokens, without a mask, that "
            f"reads a distribution, with lists of pages of at most {MOST_NUMBERS} numbers"
        )
    return found


def issue(space: AddressSpace, queue: int, token: int, future: int) -> None:
    """Raises as `forward`, InvalidState if there was none to go on from, and NotFound if its adapter was dropped."""
    last = last_step(space, queue)
    if last.goes_on(space, token):
        assert last.place is not None
        space.check_command(queue)
        _go_on(space, queue, last, last.place, token, future)
        return
    check_adapter(space, last.adapter)
    way = Way([token], [last.position + 1], (last.embed, 1), last.context, last.pages, (last.output, 1), last.adapter)
    forward.read_dist(space, queue, way, last.k, last.temperature, future)
    last_step(space, queue).find_place(space)


def _go_on(space: AddressSpace, queue: int, last: LastStep, place: Place, token: int, future: int) -> None:
    """What such a forward does, where all that it looks at is known."""
    slot, embed, output, tokens = place.slot, last.embed, last.output, place.tokens
    stop, seq = slot + 1, space.next_seq()
    last.position = position = last.position + 1
    own, positions = ((slot, stop),), (position,)
    command = DistStep(
        space.owner, queue, seq, 0, future, (), 1, False, Context(place.intervals, tokens), ((embed, embed + 1),),
        positions, own, ((output, output + 1),), last.adapter, (token,), last.k, last.temperature,
    )  # fmt: skip
    stamp = space.stamp(queue)
    space.pages.append(own, positions, stamp)
    space.embeds.fill_step(embed, output, position, stamp)
    *before, (start, _) = place.intervals
    last.place = Place(seq, place.changes, stop, place.end, (*before, (start, stop)), tokens + 1)
    space.issue(command)


def _waits(space: AddressSpace, queue: int) -> int:
    """The bytes of the distribution. Raises as `last_step`."""
    last = last_step(space, queue)
    return result_bytes((last.output, 1), last.k, last.temperature)


CALL = Call(__name__, issue, value=Dists, waits=_waits)
