"""Allocates pages of the KV cache."""

from __future__ import annotations

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.kinds import PAGES

from ..kind import define
from .allocation import allocate


def issue(space: AddressSpace, queue: int, count: int) -> int:
    """Allocates pages. Raises as `allocate`."""
    return allocate(space, queue, PAGES, count)


CALL = define(__name__, issue)
