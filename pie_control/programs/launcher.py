"""Compiles programs and starts instances of them: the Python guest with its warm pool, and uploaded components."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pie_inference.options.cache_files import find_sealed, read_own_file, remove, write_sealed

from ..errors import BadProgram, ConfigError, UnknownName
from ..sandbox import wasi
from ..sandbox.compiled import crossings
from ..sandbox.components import Component, load_compiled
from ..sandbox.contract import Contract
from ..sandbox.engine import CODE_VERSION, LinkError, Ticker, new_engine
from ..sandbox.fibers import Instance, Owner, Step
from ..sandbox.functions import HostFunction
from ..sandbox.linker import LinkedComponent
from ..sandbox.selftest import self_test
from ..sandbox.values import ContractError
from .fair_places import FairPlaces
from .languages.python_guest import build_guest, guest_folder, guest_hash
from .languages.python_source import Compilation, MadeAhead, SourceText, compile_in_guest
from .native import SUFFIX, CompilerDied, NativeCompiler, compile_to_file
from .prepared import Prepared, PreparedPrograms
from .store import Program, ProgramStore

CODE_SUFFIX = ".code"
PYTHON_PLACES = 2
"""Python programs that are compiled at a time: they take turns with the inferlets, on the same thread."""

log = logging.getLogger(__name__)


class ProgramOwner(Owner, Protocol):
    """The owner of an instance; `source` is the Python program that it runs."""

    source: SourceText | None


@dataclass(frozen=True)
class Loaded:
    """A compiled component in memory. `size`: of its native code, in bytes."""

    component: Component
    size: int


class Launcher:
    """Makes instances of programs."""

    def __init__(
        self,
        store: ProgramStore,
        contract: Contract,
        memory_bytes: int,
        warm_instances: int,
        compiler: NativeCompiler | None = None,
    ) -> None:
        self.engine = new_engine()
        self._ticker = Ticker(self.engine)
        self._store = store
        self._contract = contract
        self._memory_bytes = memory_bytes
        self._warm_target = warm_instances
        self._warm: deque[Instance] = deque()
        self._warming: Instance | None = None
        self._compiler = compiler or NativeCompiler()
        self._python_places = FairPlaces(PYTHON_PLACES)
        self.programs = PreparedPrograms(store, self._make)
        self._guest: LinkedComponent | None = None
        self._guest_hash = ""
        self._crossings: crossings.Crossings | None = None

    async def start(self) -> None:
        """Builds and compiles the Python guest, or loads it; raises ConfigError."""
        self._guest_hash = await asyncio.to_thread(guest_hash)
        try:
            component = (await self._loaded_guest()).component
            self._crossings = await asyncio.to_thread(crossings.find, self._store.cache_dir)
            for way in {None, self._crossings}:
                self_test(self.engine, way)
            self._contract.check(self.engine, component)
            self._guest = self._link(component)
        except (LinkError, ContractError, CompilerDied) as error:
            raise ConfigError(f"the Python guest does not fit this server: {error}") from error

    async def _loaded_guest(self) -> Loaded:
        folder, stem = guest_folder(self._store.cache_dir), f"{self._guest_hash}-{CODE_VERSION}"
        loaded = await asyncio.to_thread(self._try_load, folder, stem)
        if loaded is not None:
            return loaded
        data = await asyncio.to_thread(build_guest, folder)
        return self._load(await compile_to_file(data, folder, stem))

    def _link(self, component: Component) -> LinkedComponent:
        return LinkedComponent(
            self.engine,
            component,
            self._function,
            wasi.RESOURCES,
            wasi.drop_resource,
            self._ticker.wake,
            self._crossings,
        )

    def _function(self, interface: str, name: str) -> HostFunction | None:
        """Of WASI all versions that a component may be built for are alike."""
        return wasi.FUNCTIONS.get((interface.partition("@")[0], name)) or self._contract.function(interface, name)

    # ---- preparing ----

    async def _make(self, program: Program, data: bytes | None) -> Prepared:
        """Compiles a program, and links a component, or loads what was compiled before; raises BadProgram."""
        if program.kind == "python":
            return await self._make_python(program, await self._content(program, data))
        stem = f"{program.hash}-{CODE_VERSION}"
        try:
            loaded = await asyncio.to_thread(self._try_load, self._store.compiled, stem)
            if loaded is None:
                content = await self._content(program, data)
                path = await self._compiler.compile(content, self._store.compiled, stem, program.owner)
                loaded = self._load(path)
            return Prepared(loaded.size, await asyncio.to_thread(self._check_and_link, loaded.component))
        except (LinkError, ContractError) as error:
            raise BadProgram(f"not a component of the world of inferlets: {error}") from error

    async def _content(self, program: Program, data: bytes | None) -> bytes:
        data = data or await asyncio.to_thread(self._store.try_read, program)
        if data is None:
            self._store.forget(program)
            raise UnknownName(f"program {program.name!r} is damaged or gone from the disk: upload it again")
        return data

    def _check_and_link(self, component: Component) -> LinkedComponent:
        self._contract.check(self.engine, component)
        return self._link(component)

    async def _make_python(self, program: Program, data: bytes) -> Prepared:
        stem, text = f"{program.hash}-{self._guest_hash[:16]}", await asyncio.to_thread(data.decode)
        code = await asyncio.to_thread(self._try_load_code, stem)
        if code is None:
            compilation = Compilation(program.name, text)
            async with self._python_places.place(program.owner):
                code = await compile_in_guest(self._new_guest(compilation), compilation)
            await asyncio.to_thread(self._keep_code, stem, code)
        return Prepared(len(text) + len(code), text=text, code=code)

    def _try_load_code(self, stem: str) -> str | None:
        path = find_sealed(self._store.compiled, stem, CODE_SUFFIX)
        return None if path is None else read_own_file(path).decode()

    def _keep_code(self, stem: str, code: str) -> None:
        try:
            write_sealed(code.encode(), self._store.compiled, stem, CODE_SUFFIX)
        except OSError as error:  # it only saves the next compilation
            log.warning("the code of %s is not kept: %s", stem, error)

    def _load(self, path: Path) -> Loaded:
        return Loaded(load_compiled(self.engine, path), path.stat().st_size)

    def _try_load(self, folder: Path, stem: str) -> Loaded | None:
        path = find_sealed(folder, stem, SUFFIX)
        if path is None:
            return None
        try:
            return self._load(path)
        except LinkError as error:  # whole, but of a machine with another processor
            log.warning("compiling %s again: %s", path, error)
            remove(path)
            return None

    # ---- instances ----

    def instance(self, program: Program, owner: ProgramOwner) -> Instance:
        """An instance of a prepared program for an owner: from the warm pool, or a new one."""
        prepared = self.programs.get(program.hash)
        if prepared.linked is not None:
            return self._owned(Instance(prepared.linked, self._memory_bytes), owner)
        owner.source = program.name, prepared.text, prepared.code
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
