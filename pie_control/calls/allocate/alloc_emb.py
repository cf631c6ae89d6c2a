"""Allocates embeds."""

from __future__ import annotations

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.kinds import EMBEDS

from ..kind import define
from .allocation import allocate


def issue(space: AddressSpace, queue: int, count: int) -> int:
    """Allocates embeds. Raises as `allocate`."""
    return allocate(space, queue, EMBEDS, count)


CALL = define(__name__, issue)
