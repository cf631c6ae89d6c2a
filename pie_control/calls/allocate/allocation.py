"""Allocating and giving back, whatever the kind of memory."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Freed
from pie_control.resources.kinds import Resource
from pie_control.resources.ranges import parse_ranges

from ..kind import Bind, Release


def allocate(space: AddressSpace, queue: int, resource: Resource, count: int) -> int:
    """First of `count` consecutive addresses. Raises NotFound, InvalidArgument, QuotaExceeded, Exhausted."""
    space.check_command(queue)
    space.check_allocation(resource, count)
    seq = space.next_seq()
    first = space.own(resource, count, queue)
    space.issue(Bind(space.owner, queue, seq, 0, None, (), resource, first, count))
    return first


def give_back(space: AddressSpace, queue: int, resource: Resource, ranges: Sequence[int]) -> None:
    """The addresses are invalid at once; the memory comes back when the commands issued before were dispatched. Raises
    NotFound, InvalidArgument."""
    space.check_queue(queue)
    parsed = parse_ranges(ranges, resource.one)
    space.table(resource).check_owned(parsed)
    seq = space.next_seq()
    space.disown(resource, parsed)
    space.tell(Release(space.owner, Freed(seq, resource, parsed)))
