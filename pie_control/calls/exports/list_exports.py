"""What the tenant has exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.kinds import Resource
from pie_control.resources.ranges import Range

from ..kind import Command, define
from .names import MOST_BYTES

MOST_LISTED = 256
"""Exports in one answer: those that were used last."""


class Listing(NamedTuple):
    """What the future gives: a JSON list."""

    text: str


class ListCommand(Command, frozen=True):
    prefix: str

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return ()


def issue(space: AddressSpace, queue: int, prefix: str, future: int) -> None:
    """Raises NotFound, InvalidArgument."""
    space.check_command(queue)
    if len(prefix.encode()) > MOST_BYTES:
        raise InvalidArgument(f"a prefix of {len(prefix.encode())} bytes: names have {MOST_BYTES} at most")
    space.issue(ListCommand(space.owner, queue, space.next_seq(), 0, future, (), prefix))


CALL = define(__name__, issue, value=Listing)
