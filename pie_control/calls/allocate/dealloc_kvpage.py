"""Gives pages of the KV cache back."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.kinds import PAGES

from ..kind import define
from .allocation import give_back


def issue(space: AddressSpace, queue: int, pages: Sequence[int]) -> None:
    """Gives pages back. Raises as `give_back`."""
    return give_back(space, queue, PAGES, pages)


CALL = define(__name__, issue)
