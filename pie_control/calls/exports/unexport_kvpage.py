"""Takes an export back: its name is free. Those who have imported it keep their pages."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.kinds import Resource
from pie_control.resources.ranges import Range

from ..kind import Command, define
from ..values import Done
from .names import check_name


class UnexportCommand(Command, frozen=True):
    name: str

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return ()


def issue(space: AddressSpace, queue: int, name: str, future: int) -> None:
    """Raises NotFound (queue), InvalidArgument. That there is no such export is told by the future."""
    space.check_command(queue)
    check_name(name)
    space.issue(UnexportCommand(space.owner, queue, space.next_seq(), 0, future, (), name))


CALL = define(__name__, issue, value=Done)
