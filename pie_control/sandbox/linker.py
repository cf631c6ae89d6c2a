"""A component with all of its imports defined, ready to be instantiated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import wasmtime
from wasmtime import component

from .compiled.crossings import Crossings
from .components import signature
from .engine import LinkError, address_of
from .fibers import running
from .functions import HostFunction, add_function, add_trap

RUN = "func() -> result<_, string>"


class LinkedComponent:
    """A component and a linker that defines all of its imports.

    `find` gives the implementation of a function by its interface, as imported, and its name. `resources`: host type
    numbers by resource name. `drop` is called when a guest drops a resource, `wake` before every step, so that the
    ticker never sleeps while a guest runs. `crossings`: the compiled way of calls, if there is one.
    """

    def __init__(
        self,
        engine: wasmtime.Engine,
        compiled: component.Component,
        find: Callable[[str, str], HostFunction | None],
        resources: Mapping[str, int],
        drop: Callable[[Any, int, int], None],
        wake: Callable[[], None],
        crossings: Crossings | None = None,
    ) -> None:
        self.engine = engine
        self._component = compiled
        self._linker = component.Linker(engine)
        self._keep: list[Any] = []
        self._find = find
        self._resources = resources
        self._drop = drop
        self.wake = wake
        self._crossings = crossings
        try:
            self._define_imports()
        except wasmtime.WasmtimeError as error:
            raise LinkError(str(error)) from error
        self._run = self._find_run()
        self.engine_address = address_of(engine)
        self.linker_address = address_of(self._linker)
        self.component_address = address_of(compiled)
        self.run_address = address_of(self._run)

    def _define_imports(self) -> None:
        with self._linker.root() as root:
            for interface, extern in self._component.type.imports(self.engine).items():
                kind = extern.ty
                if not isinstance(kind, component.ComponentInstanceType):
                    raise LinkError(f"imports {interface!r}, which is not an interface of the world of inferlets")
                with root.add_instance(interface) as instance:
                    self._define_interface(instance, interface, kind)

    def _define_interface(self, instance: Any, interface: str, kind: component.ComponentInstanceType) -> None:
        for name, extern in kind.exports(self.engine).items():
            item = extern.ty
            if isinstance(item, component.ResourceType):
                self._define_resource(instance, name)
            elif isinstance(item, component.FuncType):
                implementation = self._find(interface, name)
                if implementation and implementation.signature not in ("", given := signature(item)):
                    wanted = implementation.signature
                    raise LinkError(f"imports `{name}` of {interface} as {given}, this server has {wanted}")
                self._keep.append(
                    add_trap(instance, name, f"`{name}` of {interface} is not available to inferlets")
                    if implementation is None
                    else add_function(instance, name, implementation, item, self._crossings)
                )

    def _define_resource(self, instance: Any, name: str) -> None:
        number, give_back = self._resources.get(name, len(self._resources) + 1), self._drop

        def drop(_store: Any, representation: int) -> None:  # wasmtime has it as long as the linker: not so this object
            if running[0] is not None and running[0].owner is not None:
                give_back(running[0].owner, number, representation)

        instance.add_resource(name, component.ResourceType.host(number), drop)

    def _find_run(self) -> component.ExportIndex:
        exports = self._component.type.exports(self.engine)
        run = exports["run"].ty if "run" in exports else None
        if not isinstance(run, component.FuncType):
            raise LinkError(f"does not export the function `run: {RUN}`")
        if (given := signature(run)) != RUN:
            raise LinkError(f"exports `run` with a type other than `{RUN}`: {given}")
        index = self._component.get_export_index("run")
        assert index is not None, "it is among the exports"
        return index
