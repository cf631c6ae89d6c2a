"""Adapters in commands."""

from __future__ import annotations

from pie_control.errors import NotFound
from pie_control.resources.address_space import AddressSpace

NO_ADAPTER = -1


def find_adapter(space: AddressSpace, name: str) -> int:
    """The number of an adapter that the model has now, which the inferlet uses from now on; raises NotFound."""
    number = space.adapters.get(name)
    if number is None:
        raise NotFound(f"model {space.model.name} has no adapter {name[:80]!r}; {_those_there(space)}")
    space.adapters_used.add(number)
    return number


def check_adapter(space: AddressSpace, number: int) -> None:
    """Raises NotFound if the model has no adapter of this number any more."""
    if number != NO_ADAPTER and number not in space.adapters.values():
        raise NotFound(f"the adapter was dropped from model {space.model.name}; {_those_there(space)}")


def _those_there(space: AddressSpace) -> str:
    return f"it has: {', '.join(space.adapters) or 'none'}"
