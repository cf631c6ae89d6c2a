"""Pages that inferlets of a tenant share by name: the commands, and what an address space does with what came."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import CallError, InvalidArgument, NotFound
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Freed
from pie_control.resources.kinds import PAGES, Resource
from pie_control.resources.ranges import Range, merge

from ..kind import Command, Release

MOST_SLOTS = 1 << 17
"""Most slots of one export."""
MOST_BYTES = 256
COPIES = "prefix:"
"""How names begin whose exports the SDK makes again where it does not find them (inferlet_sdk/sharing/prefixes.py)."""


class Offer(Command, frozen=True):
    """Gives pages a name. It is done when the worker has run all that writes the pages. `positions`: what the address
    space knows of each slot; `adapters`: numbers of those that the keys may depend on."""

    name: str
    pages: Sequence[Range]
    positions: NDArray[np.int32]
    tokens: NDArray[np.int32]
    adapters: Sequence[int]

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return merge(self.pages) if resource is PAGES else ()

    def keeps(self) -> Sequence[Range]:
        return self.pages


class Fetch(Command, frozen=True):
    """Asks for the pages that have a name."""

    name: str

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return ()


def fetched(space: AddressSpace, future: int) -> Range:
    """First address and number of the pages of a future that is done; the inferlet knows them from now on. Raises
    QuotaExceeded, Exhausted."""
    found = space.imports.pop(future)
    if isinstance(found, CallError):
        raise found
    assert found is not None, "an import was taken before it arrived"
    return found


def cancel_fetch(space: AddressSpace, future: int) -> None:
    """The inferlet will not take what a future gives. Nothing happens if it is no import."""
    found = space.imports.pop(future, None)
    if isinstance(found, tuple):
        first, count = found
        ranges = ((first, first + count),)
        seq = space.next_seq()
        space.disown(PAGES, ranges)
        space.tell(Release(space.owner, Freed(seq, PAGES, ranges)))


def missing(name: str) -> NotFound:
    """The error for a name that no export has."""
    return NotFound(
        f"there is no export {name!r} of this tenant at the worker that serves this inferlet; export-kvpage makes one. "
        "Another worker may have it: an inferlet whose first command is the import is placed there"
    )


def check_name(name: str) -> None:
    """Raises InvalidArgument unless it is short, and can be printed."""
    size = len(name.encode())
    if not 0 < size <= MOST_BYTES:
        raise InvalidArgument(f"the name of an export has 1 to {MOST_BYTES} bytes, not {size}: take a hash of it")
    if not name.isprintable():
        raise InvalidArgument(f"the name of an export must be printable, {name!r} is not")
