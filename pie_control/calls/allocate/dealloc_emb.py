"""Gives embeds back."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.kinds import EMBEDS

from ..kind import define
from .allocation import give_back


def issue(space: AddressSpace, queue: int, embeds: Sequence[int]) -> None:
    """Gives embeds back. Raises as `give_back`."""
    return give_back(space, queue, EMBEDS, embeds)


CALL = define(__name__, issue)
