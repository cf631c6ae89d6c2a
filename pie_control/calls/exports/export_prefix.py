"""Offers pages of the beginning of a text to inferlets of the tenant whose texts begin alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.ranges import parse_ranges, total_length
from pie_control.resources.tables.slots import is_token

from ..kind import Call
from ..values import Done
from .sharing import MOST_PACKED, keys_of, offer, parse_tokens


def issue(space: AddressSpace, queue: int, pages: Sequence[int], tokens: str, apart: str, future: int) -> None:
    """`tokens`: base64 of little-endian u32, those of all slots of the pages, which are at the positions 0, 1, 2, ...;
    at a model with states the last page need not be full. The pages are sealed from now on. Raises
    NotFound, InvalidArgument, InvalidState (a decode run that goes on)."""
    space.check_command(queue)
    ranges, size = parse_ranges(pages, "KV page"), space.model.page_size
    told = parse_tokens(tokens, space.model)
    slots = total_length(ranges) * size
    if not (0 < len(told) == slots or (space.model.num_states and slots - size < len(told) < slots)):
        raise InvalidArgument(f"{len(told)} tokens for pages with {slots} slots: name full pages, and all their tokens")
    text = keys_of(told, size, apart)
    positions = space.pages.read(ranges)
    held = positions[is_token(positions)]
    if not np.array_equal(held, np.arange(len(told), dtype=np.int32)) or is_token(positions[len(told) :]).any():
        raise InvalidArgument("the pages do not hold tokens at the positions 0, 1, 2, ...: only a beginning is found")
    offer(space, queue, future, ranges, positions=positions, tokens=told[:0], text=text)


CALL = Call(__name__, issue, value=Done, most={"tokens": MOST_PACKED})
