"""Adapters in commands."""

from __future__ import annotations

from pie_control.errors import NotFound
from pie_control.resources.address_space import AddressSpace

NO_ADAPTER = -1


def find_adapter(space: AddressSpace, name: str) -> int:
    """The number of an adapter that the model has now; raises NotFound."""
    number = space.adapters.get(name)
    if number is None:
        known = ", ".join(space.adapters) or "none"
        raise NotFound(f"model {space.model.name} has no adapter {name[:80]!r}; available-adapters gives: {known}")
    return number
