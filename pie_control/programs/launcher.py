"""Compiles programs and starts instances of them: the Python guest with its warm pool, and uploaded components."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Protocol

from ..errors import BadProgram, ConfigError
from ..sandbox import wasi
from ..sandbox.components import Component, compile_component, try_load_compiled
from ..sandbox.contract import Contract
from ..sandbox.engine import LinkError, Ticker, new_engine
from ..sandbox.fibers import Instance, Owner, Step
from ..sandbox.functions import HostFunction
from ..sandbox.linker import LinkedComponent
from ..sandbox.selftest import self_test
from ..sandbox.values import ContractError
from .languages.python_guest import build_guest, guest_hash
from .languages.python_source import Compilation, MadeAhead, SourceText, compile_in_guest
from .store import Program, ProgramStore


class ProgramOwner(Owner, Protocol):
    """The owner of an instance; `source` is the Python program that it runs."""

    source: SourceText | None


class Launcher:
    """Makes instances of programs."""

    def __init__(self, store: ProgramStore, contract: Contract, memory_bytes: int, warm_instances: int) -> None:
        self.engine = new_engine()
        self._ticker = Ticker(self.engine)
        self._store = store
        self._contract = contract
        self._memory_bytes = memory_bytes
        self._warm_target = warm_instances
        self._warm: deque[Instance] = deque()
        self._warming: Instance | None = None
        self._linked: dict[str, LinkedComponent] = {}
        self._codes: dict[str, str] = {}
        self._compiling = asyncio.Lock()
        self._guest: LinkedComponent | None = None

    async def start(self) -> None:
        """Builds and compiles the Python guest, or loads it; raises ConfigError."""
        try:
            component = await asyncio.to_thread(self._compiled_guest)
            self_test(self.engine)
            self._contract.check(self.engine, component)
            self._guest = self._link(component)
        except (LinkError, ContractError) as error:
            raise ConfigError(f"the Python guest does not fit this server: {error}") from error

    def _compiled_guest(self) -> Component:
        path = self._store.compiled_path(guest_hash())
        loaded = try_load_compiled(self.engine, path)
        return loaded or compile_component(self.engine, build_guest(self._store.cache_dir), path)

    def _link(self, component: Component) -> LinkedComponent:
        return LinkedComponent(
            self.engine, component, self._function, wasi.RESOURCES, wasi.drop_resource, self._ticker.wake
        )

    def _function(self, interface: str, name: str) -> HostFunction | None:
        """Of WASI all versions that a component may be built for are alike."""
        return wasi.FUNCTIONS.get((interface.partition("@")[0], name)) or self._contract.function(interface, name)

    async def prepare(self, program: Program, data: bytes | None = None) -> None:
        """Compiles a program, and links a component, before its first launch; raises BadProgram. `data` is the content
        of a component that is not stored yet."""
        if program.hash in self._codes or program.hash in self._linked:
            return
        async with self._compiling:  # one at a time: compiling uses all cores
            if program.hash in self._codes or program.hash in self._linked:
                return  # another caller was first
            if program.kind == "python":
                await self._compile_python(program)
            else:
                await self._compile_and_link(program, self._store.compiled_path(program.hash), data)

    async def _compile_python(self, program: Program) -> None:
        compilation = Compilation(program)
        instance = self._new_guest(compilation)
        self._codes[program.hash] = await compile_in_guest(instance, compilation)

    async def _compile_and_link(self, program: Program, path: Path, data: bytes | None) -> None:
        def compiled() -> Component:
            loaded = try_load_compiled(self.engine, path)
            return loaded or compile_component(self.engine, data or program.path.read_bytes(), path)

        try:
            component = await asyncio.to_thread(compiled)
            self._contract.check(self.engine, component)
            self._linked[program.hash] = self._link(component)
        except (LinkError, ContractError) as error:
            raise BadProgram(f"not a component of the world of inferlets: {error}") from error

    def instance(self, program: Program, owner: ProgramOwner) -> Instance:
        """An instance of a prepared program for an owner: from the warm pool, or a new one."""
        if program.source is None:
            return self._owned(Instance(self._linked[program.hash], self._memory_bytes), owner)
        owner.source = program.name, program.source, self._codes[program.hash]
        if not self._warm:
            return self._new_guest(owner)
        instance = self._owned(self._warm.popleft(), owner)
        instance.resume(owner.source)
        return instance

    def _new_guest(self, owner: Owner) -> Instance:
        if self._guest is None:
            raise ConfigError("the server is not started")
        return self._owned(Instance(self._guest, self._memory_bytes), owner)

    @staticmethod
    def _owned(instance: Instance, owner: Owner) -> Instance:
        instance.owner = owner
        owner.instance = instance
        return instance

    def warm_one(self) -> bool:
        """Works for one slice of time on an instance for the warm pool; False if the pool is full."""
        if self._guest is None or len(self._warm) >= self._warm_target:
            return False
        self._warming = self._warming or self._new_guest(MadeAhead())
        if self._warming.step() is not Step.PREEMPTED:  # this guest is our own code: now it waits for its source
            self._warm.append(self._warming)
            self._warming = None
        return True

    @property
    def warm(self) -> int:
        """Number of instances in the warm pool."""
        return len(self._warm)

    def close(self) -> None:
        """Frees the warm instances and stops the ticker. Idempotent."""
        for instance in (*self._warm, *([self._warming] if self._warming else [])):
            instance.close()
        self._warm.clear()
        self._warming = None
        self._ticker.close()
