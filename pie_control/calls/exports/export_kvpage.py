"""Gives pages a name under which other inferlets of the tenant can import them. They outlive their maker."""

from __future__ import annotations

import binascii
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import CallError, InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.ranges import parse_ranges, total_length
from pie_control.resources.tables.slots import is_token

from ..kind import define
from ..values import Done
from .sharing import MOST_SLOTS, Offer, check_name

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
    named = _parse_tokens(tokens, positions, space.model.vocab_size) if tokens else _UNTOLD
    after = 0 if space.has_one_queue else space.hazards.of_pages(queue, ranges)
    seq = space.next_seq()
    space.pages.seal(ranges)
    space.watch(future, lambda value: space.pages.unseal(ranges) if isinstance(value, CallError) else None)
    adapters = tuple(space.adapters_used)
    space.issue(Offer(space.owner, queue, seq, after, future, (), name, ranges, positions, named, adapters))


def _parse_tokens(text: str, positions: NDArray[np.int32], vocab_size: int) -> NDArray[np.int32]:
    count = int(is_token(positions).sum())
    try:
        tokens = np.frombuffer(binascii.a2b_base64(text, strict_mode=True), "<u4")
    except ValueError as error:
        raise InvalidArgument(f"tokens are base64 of little-endian u32: {error}") from None
    if len(tokens) != count:
        raise InvalidArgument(f"{len(tokens)} tokens are named, the pages hold {count}: name all of them, or none")
    if len(tokens) and tokens.max() >= vocab_size:
        raise InvalidArgument(f"token {tokens.max()} is outside of the vocabulary of {vocab_size} tokens")
    return tokens.astype(np.int32)


CALL = define(__name__, issue, value=Done)
