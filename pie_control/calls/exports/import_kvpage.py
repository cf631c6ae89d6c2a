"""Pages that another inferlet of the tenant has exported, sealed: to be read, and not to be written.

The control layer finds them and answers; the address space then gives them addresses, and tells which (`Adopt`). What
nobody wants any more by then, or is more than the inferlet may hold, is given back (`Discard`).
"""

from __future__ import annotations

from pie_control.errors import CallError, NotFound
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.kinds import PAGES

from ..kind import Adopt, Discard, define
from ..values import Import
from .sharing import MOST_SLOTS, Fetch, check_name


def issue(space: AddressSpace, queue: int, name: str, future: int) -> None:
    """Raises NotFound (queue), InvalidArgument. That there is no such export is told by the future."""
    space.check_command(queue)
    check_name(name)
    seq = space.next_seq()
    space.imports[future] = None
    space.watch(future, lambda value: _arrived(space, future, value))
    space.issue(Fetch(space.owner, queue, seq, 0, future, (), name))


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


def _result_bytes(name: str) -> int:
    """At most."""
    return 2 * 4 * MOST_SLOTS


CALL = define(__name__, issue, value=Import, result_bytes=_result_bytes)
