"""Pages that another inferlet of the tenant has exported, sealed: to be read, and not to be written.

The control layer finds them and answers; the address space then gives them addresses, and tells which (`Adopt`). What
nobody wants any more by then, or is more than the inferlet may hold, is given back (`Discard`).
"""

from __future__ import annotations

from pie_control.resources.address_space import AddressSpace

from ..kind import Call
from ..values import Import
from .sharing import MOST_SLOTS, check_name, fetch


def issue(space: AddressSpace, queue: int, name: str, future: int) -> None:
    """Raises NotFound (queue), InvalidArgument. That there is no such export is told by the future."""
    space.check_command(queue)
    check_name(name)
    fetch(space, queue, future, name)


def _result_bytes(name: str) -> int:
    """A place and a token are told of each slot, however many there will be."""
    return 2 * 4 * MOST_SLOTS


CALL = Call(__name__, issue, value=Import, result_bytes=_result_bytes)
