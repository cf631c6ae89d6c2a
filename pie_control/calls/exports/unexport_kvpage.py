"""Takes an export back: its name is free. Those who have imported it keep their pages."""

from __future__ import annotations

from pie_control.resources.address_space import AddressSpace
from pie_control.resources.memory import Memory
from pie_control.tenants.tenant import Tenant

from ..kind import Call, Question
from ..values import Done
from .sharing import check_name, missing


class UnexportCommand(Question, frozen=True):
    name: str

    def answer(self, memory: Memory, tenant: Tenant, now: float) -> Done:
        block = memory.exports.take_back(tenant, self.name)
        if block is None:
            raise missing(self.name)
        memory.release_block(block)
        return Done()


def issue(space: AddressSpace, queue: int, name: str, future: int) -> None:
    """Raises NotFound (queue), InvalidArgument. That there is no such export is told by the future."""
    space.check_command(queue)
    check_name(name)
    space.issue(UnexportCommand(space.owner, queue, space.next_seq(), 0, future, (), name))


CALL = Call(__name__, issue, value=Done)
