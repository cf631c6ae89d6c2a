"""A new queue. The caller chooses its number: one inferlet's queues are numbered over all models."""

from __future__ import annotations

from pie_control.resources.address_space import AddressSpace

from ..kind import OpenQueue


def issue(space: AddressSpace, queue: int) -> None:
    """Raises QuotaExceeded."""
    space.open_queue(queue)
    space.tell(OpenQueue(space.owner, queue))
