"""What the tenant has exported."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.memory import Memory
from pie_control.tenants.tenant import Tenant

from ..kind import Call, Question
from .sharing import MOST_BYTES

MOST_LISTED = 256
"""Exports in one answer: those that were used last."""


class Listing(NamedTuple):
    """What the future gives: a JSON list."""

    text: str


class ListCommand(Question, frozen=True):
    looks_at_all = True

    prefix: str

    def answer(self, memory: Memory, tenant: Tenant, now: float) -> Listing:
        listed = memory.exports.listed(tenant, self.prefix, MOST_LISTED)
        about = [{"name": one.name, "pages": len(one.pages), "tokens": one.num_tokens} for one in listed]
        return Listing(msgspec.json.encode(about).decode())


def issue(space: AddressSpace, queue: int, prefix: str, future: int) -> None:
    """Raises NotFound, InvalidArgument."""
    space.check_command(queue)
    if len(prefix.encode()) > MOST_BYTES:
        raise InvalidArgument(f"a prefix of {len(prefix.encode())} bytes: names have {MOST_BYTES} at most")
    space.issue(ListCommand(space.owner, queue, space.next_seq(), 0, future, (), prefix))


def _result_bytes(prefix: str) -> int:
    """At most, where each character of a name is escaped."""
    return MOST_LISTED * (2 * MOST_BYTES + 64)


CALL = Call(__name__, issue, value=Listing, result_bytes=_result_bytes)
