"""Gives pages a name under which other inferlets of the tenant can import them. They outlive their maker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.ranges import parse_ranges, total_length
from pie_control.resources.tables.slots import is_token
from pie_inference.protocol import ModelDescription

from ..kind import Call
from ..values import Done
from .sharing import MOST_SLOTS, check_name, offer, parse_tokens

_UNTOLD = np.zeros(0, np.int32)


def issue(space: AddressSpace, queue: int, name: str, pages: Sequence[int], tokens: str, future: int) -> None:
    """`tokens`: base64 of little-endian u32, one for each token in the order of the slots, or "". The pages are sealed
    from now on. Raises NotFound, InvalidArgument, InvalidState (a decode run that goes on, or a page without
    memory)."""
    space.check_command(queue)
    check_name(name)
    ranges = parse_ranges(pages, "KV page")
    slots = total_length(ranges) * space.model.page_size
    if not 0 < slots <= MOST_SLOTS:
        raise InvalidArgument(f"an export has 1 to {MOST_SLOTS // space.model.page_size} pages: name fewer, or some")
    positions = space.pages.read(ranges)
    named = _named_tokens(tokens, positions, space.model) if tokens else _UNTOLD
    offer(space, queue, future, ranges, name=name, positions=positions, tokens=named)


def _named_tokens(text: str, positions: NDArray[np.int32], model: ModelDescription) -> NDArray[np.int32]:
    tokens, count = parse_tokens(text, model), int(is_token(positions).sum())
    if len(tokens) != count:
        raise InvalidArgument(f"{len(tokens)} tokens are named, the pages hold {count}: name all of them, or none")
    return tokens


CALL = Call(__name__, issue, value=Done)
