"""Queues of higher priority go first; 0 at creation."""

from __future__ import annotations

from pie_control.resources.address_space import AddressSpace

from ..kind import Call, Prioritize


def issue(space: AddressSpace, queue: int, priority: int) -> None:
    """Raises NotFound."""
    space.check_queue(queue)
    space.tell(Prioritize(space.owner, queue, priority))


CALL = Call(__name__, issue)
