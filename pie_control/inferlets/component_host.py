"""Compiled programs ready to be launched: the Python guest with its pool of warm instances, and uploaded components."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

import wasmtime
from wasmtime.component import Component, ComponentInstanceType, FuncType

from ..errors import BadProgram, ConfigError
from . import wasi
from .programs import Program, ProgramStore, compile_component
from .python_guest import build_guest, guest_hash
from .wasm_fibers import HostFunction, Instance, LinkedComponent, LinkError, Step, new_engine
from .wasm_selftest import self_test
from .wasm_values import ContractError, signature

WORLD_PACKAGE = "pie:inferlet/"
Functions = dict[tuple[str, str], HostFunction]


def imports_of(engine: wasmtime.Engine, component: Component) -> dict[tuple[str, str], str]:
    """Signatures of the functions of our world that a component imports, by (interface without version, name)."""
    found = {}
    for interface, extern in component.type.imports(engine).items():
        kind = extern.ty
        if interface.startswith(WORLD_PACKAGE) and isinstance(kind, ComponentInstanceType):
            for name, item in kind.exports(engine).items():
                function = item.ty
                if isinstance(function, FuncType):
                    found[interface.split("@")[0], name] = signature(function)
    return found


class ComponentHost:
    """Makes instances of programs."""

    def __init__(self, cache_dir: Path, functions: Functions, memory_bytes: int, warm_instances: int) -> None:
        self.engine = new_engine()
        self._cache_dir = cache_dir
        self._functions: Functions = {**wasi.FUNCTIONS, **functions}
        self._memory_bytes = memory_bytes
        self._warm_target = warm_instances
        self._warm: deque[Instance] = deque()
        self._linked: dict[str, LinkedComponent] = {}
        self._contract: dict[tuple[str, str], str] = {}
        self._guest: LinkedComponent | None = None

    async def start(self, store: ProgramStore) -> None:
        """Builds and compiles the Python guest, or loads it; raises ConfigError."""
        path = store.compiled_path(guest_hash())
        if path.exists():
            component = Component.deserialize_file(self.engine, str(path))
        else:
            data = await asyncio.to_thread(build_guest, self._cache_dir)
            component = await asyncio.to_thread(compile_component, self.engine, data, path)
        try:
            self_test(self.engine)
            self._guest = self._link(component)
        except (LinkError, ContractError) as error:
            raise ConfigError(f"the Python guest does not fit this server: {error}") from error
        self._contract = imports_of(self.engine, component)

    def _link(self, component: Component) -> LinkedComponent:
        return LinkedComponent(self.engine, component, self._functions, wasi.RESOURCES, wasi.drop_resource)

    async def prepare(self, program: Program, store: ProgramStore) -> None:
        """Compiles and links a component, so that it can be launched; raises BadProgram. Nothing to do for Python."""
        if program.kind == "python" or program.hash in self._linked:
            return
        path = store.compiled_path(program.hash)
        try:
            component = await asyncio.to_thread(compile_component, self.engine, program.path.read_bytes(), path)
            self._check_contract(component)
            self._linked[program.hash] = self._link(component)
        except (LinkError, ContractError, wasmtime.WasmtimeError) as error:
            raise BadProgram(f"not a component of the world of inferlets: {error}") from error

    def _check_contract(self, component: Component) -> None:
        for (interface, name), given in imports_of(self.engine, component).items():
            wanted = self._contract.get((interface, name))
            if wanted is None:
                raise LinkError(f"imports {interface}.{name}, which this server does not have")
            if wanted != given:
                raise LinkError(f"imports {interface}.{name} as {given}, this server has {wanted}")

    def instance(self, program: Program) -> Instance:
        """A fresh instance of a prepared program."""
        if program.kind == "component":
            return Instance(self._linked[program.hash], self._memory_bytes)
        return self._warm.popleft() if self._warm else self._new_guest()

    def _new_guest(self) -> Instance:
        if self._guest is None:
            raise ConfigError("the server is not started")
        return Instance(self._guest, self._memory_bytes)

    def warm_one(self) -> bool:
        """Makes one more warm instance of the Python guest, 1-2 ms; False when there are enough."""
        if self._guest is None or len(self._warm) >= self._warm_target:
            return False
        instance = self._new_guest()
        while instance.instantiate() is not Step.DONE:
            pass  # the guest is ours: it ends
        self._warm.append(instance)
        return True

    @property
    def warm(self) -> int:
        """Warm instances at hand."""
        return len(self._warm)

    def close(self) -> None:
        """Frees warm instances. Idempotent."""
        while self._warm:
            self._warm.popleft().close()
