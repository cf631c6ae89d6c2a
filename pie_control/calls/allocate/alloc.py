"""Allocates pages of the KV cache or embeds, or reserves addresses of pages that have no memory yet: a decode run binds
each as it reaches it. (Not in the paper: a run cannot know how many pages it will need.)

To reserve is a change of the logical state only. The pages count as held from now on, so no run can exceed a quota.
"""

from __future__ import annotations

from typing import Literal

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.kinds import EMBEDS, PAGES
from pie_control.resources.tables.reservations import withhold

from ..kind import Bind, Call

Memory = Literal["kvpage", "emb", "reserved-kvpage"]
"""Kinds of memory, as the WIT names them."""


def issue(space: AddressSpace, queue: int, kind: Memory, count: int) -> int:
    """First of `count` consecutive addresses. Raises NotFound, InvalidArgument, QuotaExceeded, Exhausted."""
    resource = EMBEDS if kind == "emb" else PAGES
    if kind == "reserved-kvpage":
        return _reserve(space, queue, count)
    space.check_command(queue)
    space.check_allocation(resource, count)
    seq = space.next_seq()
    first = space.own(resource, count, queue)
    space.issue(Bind(space.owner, queue, seq, 0, None, (), resource, first, count))
    return first


def _reserve(space: AddressSpace, queue: int, count: int) -> int:
    space.check_queue(queue)
    space.check_allocation(PAGES, count)
    first = space.own(PAGES, count, queue)
    withhold(space.pages, first, count)
    return first


CALL = Call(__name__, issue)
