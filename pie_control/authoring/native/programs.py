"""The programs of a host that runs them outside of the sandbox."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from ...errors import BadProgram
from ...programs.host.programs import HostPrograms
from ...programs.host.python_guests import ProgramOwner
from ...programs.warm_pool import WarmPool
from ...sandbox.contract import Contract
from ...sandbox.fibers import Instance
from .instance import NativeInstance


class NativePrograms(HostPrograms):
    """`instances` has that of each inferlet, by its id."""

    def __init__(self, contract: Contract, memory_bytes: int, pool: WarmPool) -> None:
        super().__init__(contract, memory_bytes, pool)
        self.contract = contract
        self.instances: dict[str, NativeInstance] = {}
        self.expects = False
        """Whether the next instance is that of a program which a thread waits to drive."""

    def start(self, guest: Path) -> None:
        """Needs no guest."""

    def instance(self, program: str, name: str, owner: ProgramOwner, tenant: str = "") -> Instance:
        """An instance that its program drives, from its own thread. Raises BadProgram for children of one."""
        if not self.expects:
            raise BadProgram("a program outside of the sandbox can launch no others: run it in the sandbox")
        self.expects = False
        native = NativeInstance(asyncio.get_running_loop())
        native.owner = owner
        owner.instance = instance = cast(Instance, native)  # all that an inferlet needs of one
        self.instances[native.owner.inferlet.id] = native
        return instance
