"""The programs of an application host: what was brought here to be launched, and instances of it.

Whatever reads untrusted code stands here and not in the control process: the guest that compiles Python, and wasmtime,
which checks and links components.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from pie_inference.options.cache_files import read_own_file, write_sealed

from ...errors import BadProgram, ConfigError
from ...sandbox import wasi
from ...sandbox.compiled import crossings
from ...sandbox.components import Component, load_compiled
from ...sandbox.contract import Contract
from ...sandbox.engine import TICK_SECONDS, TICKS_AT_ONCE, LinkError, Ticker, address_of, new_engine
from ...sandbox.fibers import Instance
from ...sandbox.functions import HostFunction
from ...sandbox.linker import LinkedComponent
from ...sandbox.selftest import self_test
from ...sandbox.values import ContractError
from ...texts import cut_middle
from ..compile_child import MOST_REASON
from ..program_host import CODE_SUFFIX
from ..warm_pool import WarmPool
from .python_guests import ProgramOwner, PythonGuests, given, owned
from .python_source import Compilation, compile_in_guest
from .used_guests import UsedGuests, User

log = logging.getLogger(__name__)

USED_BYTES_OF_WARM = 2
"""Memory of a Python guest that has run a program, in that of one that waits for its first."""


class HostPrograms:
    """A `ProgramHost`, here. Instances have `memory_bytes` each; Python guests of `pool` wait for a launch. Belongs to
    one event loop."""

    def __init__(self, contract: Contract, memory_bytes: int, pool: WarmPool) -> None:
        self._engine = new_engine()
        self._ticker = Ticker(self._engine)
        self._contract = contract
        self._memory_bytes = memory_bytes
        self._pool = pool
        self._programs: dict[str, str | LinkedComponent] = {}  # of Python programs what the guest made of their text
        self._python: PythonGuests | None = None
        self._used = UsedGuests(pool.most // USED_BYTES_OF_WARM)
        self._crossings: crossings.Crossings | None = None

    def start(self, guest: Path) -> None:
        """Makes the Python guest ready, from its file of compiled code, in whose folder the compiled way of calls is
        kept, too; raises ConfigError."""
        try:
            component = load_compiled(self._engine, guest)
            self._crossings = crossings.find(guest.parent)
            if self._crossings is not None:
                engine = address_of(self._engine)
                self._ticker.tick = self._crossings.ticks(engine, TICK_SECONDS, TICKS_AT_ONCE)
            self_test(self._engine, self._crossings)
            linked = self._check_and_link(component)
        except (LinkError, ContractError) as error:
            raise ConfigError(f"the Python guest does not fit this server: {error}") from error
        self._python = PythonGuests(linked, self._memory_bytes, self._pool)

    @property
    def _guests(self) -> PythonGuests:
        if self._python is None:
            raise ConfigError("the server is not started")
        return self._python

    def _check_and_link(self, component: Component) -> LinkedComponent:
        self._contract.check(self._engine, component)
        return LinkedComponent(
            self._engine,
            component,
            self._function,
            wasi.RESOURCES,
            wasi.drop_resource,
            self._ticker.wake,
            self._crossings,
        )

    def _function(self, interface: str, name: str) -> HostFunction | None:
        """A host function. All versions of WASI that a component may be built for are alike."""
        return wasi.FUNCTIONS.get((interface.partition("@")[0], name)) or self._contract.function(interface, name)

    # ---- what the control process asks for: see `ProgramHost` ----

    async def compile(self, program: str, name: str, text: str, folder: Path, stem: str) -> None:
        compilation = Compilation(name, text)
        code = await compile_in_guest(self._guests.new(compilation), compilation)
        try:
            await asyncio.to_thread(write_sealed, code.encode(), folder, stem, CODE_SUFFIX)
        except OSError as error:
            log.warning("the code of %s is not kept: %s", stem, error)
        self._programs[program] = code  # which has the sources, too

    async def load(self, program: str, path: Path) -> None:
        try:
            self._programs[program] = (await asyncio.to_thread(read_own_file, path)).decode()
        except OSError as error:
            raise BadProgram(f"the code of the program cannot be read: {error}") from error

    async def link(self, program: str, path: Path) -> None:
        try:
            self._programs[program] = await asyncio.to_thread(self._load, path)
        except (LinkError, ContractError) as error:
            reason = cut_middle(str(error), MOST_REASON)
            raise BadProgram(f"not a component of the world of inferlets: {reason}") from error

    def _load(self, path: Path) -> LinkedComponent:
        return self._check_and_link(load_compiled(self._engine, path))

    def forget(self, program: str) -> None:
        self._programs.pop(program, None)
        self._used.forget(program)

    # ---- instances ----

    def instance(self, program: str, name: str, owner: ProgramOwner, tenant: str = "") -> Instance:
        """An instance of a program that is here, for an owner that works for a tenant; `name` is what the owner calls
        the program. It is new, or `keep` was given it for this tenant and program."""
        found = self._programs[program]
        if isinstance(found, LinkedComponent):
            return owned(Instance(found, self._memory_bytes), owner)
        used = self._used.take(User(tenant, program))
        owner.source = (name, "", found if used is None else "")  # one that was used has it
        return self._guests.take(owner) if used is None else given(used, owner)

    def keep(self, instance: Instance, program: str, tenant: str, grown: int) -> bool:
        """Keeps an instance whose program has returned and can run again; `grown`: bytes by which it has grown. False
        if it shall be freed."""
        return program in self._programs and self._used.keep(instance, User(tenant, program), grown)

    def warm_one(self, has_room: bool = True) -> bool:
        """Works for one slice of time on the Python guests that wait, which become more or fewer; False if there are as
        many as shall. `has_room`: there is memory for a further one."""
        return self._used.drop_unused() or (self._python is not None and self._python.make_ahead(has_room))

    def drop_one(self) -> bool:
        """Frees one of the Python guests that wait, first those that have run a program; False if there is none."""
        return self._used.drop_one() or (self._python is not None and self._python.drop_one())

    @property
    def warm(self) -> int:
        """Python guests that wait for a launch."""
        return 0 if self._python is None else self._python.ready

    @property
    def warm_wanted(self) -> int:
        """How many shall wait, by the demand of late."""
        return 0 if self._python is None else self._python.wanted

    @property
    def is_warm(self) -> bool:
        """Whether as many wait as shall."""
        return self._python is None or self._python.is_full

    def close(self) -> None:
        """Frees the guests that wait and stops the ticker. Idempotent."""
        self._used.close()
        if self._python is not None:
            self._python.close()
        self._ticker.close()
