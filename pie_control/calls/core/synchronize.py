"""A future that is done when every command issued to the queue so far has taken effect."""

from __future__ import annotations

from pie_control.resources.address_space import AddressSpace

from ..kind import Barrier, Call
from ..values import Done


def issue(space: AddressSpace, queue: int, future: int) -> None:
    """Raises NotFound, QuotaExceeded."""
    space.check_command(queue)
    space.issue(Barrier(space.owner, queue, space.next_seq(), 0, future, ()))


CALL = Call(__name__, issue, value=Done)
