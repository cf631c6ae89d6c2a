"""Gives pages of the KV cache or embeds back."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Freed
from pie_control.resources.kinds import EMBEDS, PAGES
from pie_control.resources.ranges import parse_ranges

from ..kind import Release, define
from .alloc import Memory


def issue(space: AddressSpace, queue: int, kind: Memory, addresses: Sequence[int]) -> None:
    """The addresses are invalid at once; the memory comes back when the commands issued before were dispatched. Raises
    NotFound, InvalidArgument."""
    resource = EMBEDS if kind == "emb" else PAGES
    space.check_queue(queue)
    parsed = parse_ranges(addresses, resource.one)
    space.table(resource).check_owned(parsed)
    seq = space.next_seq()
    space.disown(resource, parsed)
    space.tell(Release(space.owner, Freed(seq, resource, parsed)))


CALL = define(__name__, issue)
