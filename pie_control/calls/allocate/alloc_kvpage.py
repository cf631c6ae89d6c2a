"""Allocates pages of the KV cache, or reserves addresses of pages that have no memory yet: a decode run binds each as
it reaches it. (Not in the paper: a run cannot know how many pages it will need.)

To reserve is a change of the logical state only. The pages count as held from now on, so no run can exceed a quota.
"""

from __future__ import annotations

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.kinds import PAGES
from pie_control.resources.tables.reservations import withhold

from ..kind import define
from .allocation import allocate


def issue(space: AddressSpace, queue: int, count: int, reserved: bool = False) -> int:
    """First of `count` consecutive addresses. Raises NotFound, InvalidArgument, QuotaExceeded, Exhausted."""
    if not reserved:
        return allocate(space, queue, PAGES, count)
    space.check_queue(queue)
    space.check_allocation(PAGES, count)
    first = space.own(PAGES, count, queue)
    withhold(space.pages, first, count)
    return first


CALL = define(__name__, issue)
