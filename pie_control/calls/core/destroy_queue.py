"""Ends a queue after the commands that it holds."""

from __future__ import annotations

from pie_control.resources.address_space import AddressSpace

from ..kind import CloseQueue


def issue(space: AddressSpace, queue: int) -> None:
    """Raises NotFound."""
    space.close_queue(queue)
    space.tell(CloseQueue(space.owner, queue))
