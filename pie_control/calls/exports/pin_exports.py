"""Pins exports for some time: they do not go when memory is short."""

from __future__ import annotations

import json
from typing import NamedTuple

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.exports.text_keys import TextKeys
from pie_control.resources.memory import Memory
from pie_control.tenants.tenant import Standing, Tenant
from pie_inference.protocol import ModelDescription

from ..kind import Call, Question
from .sharing import MOST_PACKED, check_name, keys_of, missing, parse_tokens

MOST_SECONDS = 24 * 3600


class Pinned(NamedTuple):
    """What the future gives: a JSON object."""

    text: str


class PinCommand(Question, frozen=True):
    looks_at_all = True

    name: str
    beginning: TextKeys | None
    seconds: int

    @property
    def searches(self) -> int:
        return 1 if self.beginning is None else self.beginning.searches

    def fits(self, model: ModelDescription) -> bool:
        return super().fits(model) and (self.beginning is None or self.beginning.fits(model.page_size))

    def answer(self, memory: Memory, tenant: Tenant, now: float) -> Pinned:
        exports, until = memory.exports, now + self.seconds
        if self.beginning is not None:
            found = list(exports.beginning(Standing(tenant), self.beginning).exports)
            known = exports.known(tenant, self.beginning.pages)
            pages = exports.pages_in(tenant, self.beginning.pages, exports.pin(tenant, found, until, now))
        else:
            export = exports.standing(tenant, self.name)
            if export is None:
                raise missing(self.name)
            known = len(export.pages)
            pages = sum(len(one.pages) for one in exports.pin(tenant, [export], until, now))
        return Pinned(json.dumps({"pages": pages, "known": known}))


def issue(space: AddressSpace, queue: int, name: str, tokens: str, apart: str, seconds: int, future: int) -> None:
    """`tokens`: base64 of little-endian u32, with the name "". Raises NotFound (queue), InvalidArgument. That there is
    no such export is told by the future."""
    space.check_command(queue)
    if seconds > MOST_SECONDS:
        raise InvalidArgument(f"{seconds} seconds: exports are pinned for {MOST_SECONDS} at most")
    beginning: TextKeys | None = None
    if name:
        check_name(name)
    else:
        size = space.model.page_size
        beginning = keys_of(parse_tokens(tokens, space.model), size, apart)
        if not beginning.pages:
            raise InvalidArgument(f"give a name, or tokens that fill a page of {size} slots")
    space.issue(PinCommand(space.owner, queue, space.next_seq(), 0, future, (), name, beginning, seconds))


CALL = Call(__name__, issue, value=Pinned, most={"tokens": MOST_PACKED})
