"""Pages that another inferlet of the tenant has exported, sealed: to be read, and not to be written.

The control layer finds them and answers; the address space then gives them addresses, and tells which (`Adopt`). What
nobody wants any more by then, or is more than the inferlet may hold, is given back (`Discard`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.errors import CallError, NotFound
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Freed
from pie_control.resources.kinds import PAGES, Resource
from pie_control.resources.ranges import Range

from ..kind import Adopt, Command, Discard, Release, define
from ..values import Import
from .export_kvpage import MOST_SLOTS
from .names import check_name


class ImportCommand(Command, frozen=True):
    name: str

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return ()


def issue(space: AddressSpace, queue: int, name: str, future: int) -> None:
    """Raises NotFound (queue), InvalidArgument. That there is no such export is told by the future."""
    space.check_command(queue)
    check_name(name)
    seq = space.next_seq()
    space.imports[future] = None
    space.watch(future, lambda value: _arrived(space, future, value))
    space.issue(ImportCommand(space.owner, queue, seq, 0, future, (), name))


def _arrived(space: AddressSpace, future: int, value: object) -> None:
    if not isinstance(value, Import):
        space.imports.pop(future, None)
        return
    count = len(value.positions) // space.model.page_size
    try:
        if future not in space.imports:
            raise NotFound("it was cancelled")
        space.check_allocation(PAGES, count)
    except CallError as error:
        if future in space.imports:
            space.imports[future] = error
        space.tell(Discard(space.owner, future))
        return
    first = space.adopt(value.positions)
    space.adapters_used.update(value.adapters.tolist())
    space.imports[future] = (first, count)
    space.tell(Adopt(space.owner, future, first))


def taken(space: AddressSpace, future: int) -> Range:
    """First address and number of the pages of a future that is done; the inferlet knows them from now on. Raises
    QuotaExceeded, Exhausted."""
    found = space.imports.pop(future)
    if isinstance(found, CallError):
        raise found
    assert found is not None, "an import was taken before it arrived"
    return found


def cancel(space: AddressSpace, future: int) -> None:
    """The inferlet will not take what a future gives. Nothing happens if it is no import."""
    found = space.imports.pop(future, None)
    if isinstance(found, tuple):
        first, count = found
        ranges = ((first, first + count),)
        seq = space.next_seq()
        space.disown(PAGES, ranges)
        space.tell(Release(space.owner, Freed(seq, PAGES, ranges)))


def _result_bytes(name: str) -> int:
    """At most."""
    return 2 * 4 * MOST_SLOTS


CALL = define(__name__, issue, value=Import, result_bytes=_result_bytes)
