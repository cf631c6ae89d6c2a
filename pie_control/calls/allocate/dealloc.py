"""Gives pages of the KV cache or embeds back."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Freed
from pie_control.resources.kinds import EMBEDS, PAGES, STATES, Resource
from pie_control.resources.ranges import Range, parse_ranges

from ..kind import Call, Release
from .alloc import Memory


def issue(space: AddressSpace, queue: int, kind: Memory, addresses: Sequence[int]) -> None:
    """The addresses are invalid at once; the memory comes back when the commands issued before were dispatched. Raises
    NotFound, InvalidArgument."""
    resource = EMBEDS if kind == "emb" else PAGES
    space.check_queue(queue)
    parsed = parse_ranges(addresses, resource.one)
    (space.embeds if resource is EMBEDS else space.pages).check_owned(parsed)
    if resource is PAGES:
        give_back_pages(space, parsed)
    else:
        give_back(space, resource, parsed)


def give_back_pages(space: AddressSpace, pages: Sequence[Range]) -> None:
    """Gives pages back that are owned, and the states that have read what they hold."""
    give_back(space, PAGES, pages)
    size = space.model.page_size
    drop_states(space, [(first * size, last * size) for first, last in pages])


def give_back(space: AddressSpace, resource: Resource, ranges: Sequence[Range]) -> None:
    """Gives addresses back that are owned."""
    seq = space.next_seq()
    space.disown(resource, ranges)
    space.tell(Release(space.owner, Freed(seq, resource, ranges)))


def drop_states(space: AddressSpace, slots: Sequence[Range]) -> None:
    """Gives back the states that have read any of these slots, which change."""
    if space.states.owned and (dropped := space.states.drop(slots)):
        give_back(space, STATES, dropped)


CALL = Call(__name__, issue)
