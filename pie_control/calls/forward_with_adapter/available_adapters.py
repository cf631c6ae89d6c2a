"""Names of the adapters that a model has now."""

from __future__ import annotations

from pie_control.resources.address_space import AddressSpace

from ..kind import define


def issue(space: AddressSpace, queue: int) -> list[str]:
    """In the order in which they were loaded. Raises NotFound."""
    space.check_queue(queue)
    return list(space.adapters)


CALL = define(__name__, issue)
