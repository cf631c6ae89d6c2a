"""Gives filled embeds new positions. (Not in the paper: without it, an output embed that is fed back as an input would
keep the position of the token that made it, and could not see that token.)

A change of the logical state only: forwards issued before keep the positions that they were issued with.
"""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.ranges import parse_ranges, total_length

from ..kind import Call
from ..positions import check_positions


def issue(space: AddressSpace, queue: int, positions: Sequence[int], embeds: Sequence[int]) -> None:
    """Gives embeds, which are ranges, as many positions. Raises NotFound, InvalidArgument, InvalidState (embed never
    filled)."""
    space.check_queue(queue)
    ranges = parse_ranges(embeds, "embed")
    if len(positions) != total_length(ranges):
        raise InvalidArgument(
            f"set-positions got {len(positions)} positions and {total_length(ranges)} embeds; the numbers must be equal"
        )
    if not ranges:
        return
    check_positions(positions, space.model.max_context)
    space.embeds.filled_positions(ranges)
    space.embeds.move(ranges, positions)


CALL = Call(__name__, issue)
