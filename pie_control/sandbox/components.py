"""Components: compiling them, loading compiled ones, and checking what they import."""

from __future__ import annotations

from pathlib import Path

from wasmtime import Engine, WasmtimeError
from wasmtime.component import Component, ComponentInstanceType, FuncType

from .engine import LinkError
from .values import signature

__all__ = [
    "Component",
    "Contract",
    "check_contract",
    "compile_component",
    "contract_of",
    "load_compiled",
]

WORLD_PACKAGE = "pie:inferlet/"
WASI_PACKAGES = "wasi:"
Contract = dict[tuple[str, str], str]
"""Signatures of functions by (interface without version, name)."""


def load_compiled(engine: Engine, path: Path) -> Component:
    """The component in a file of compiled code, which is mapped and run as it is: the caller vouches for it. Raises
    LinkError if another version made it."""
    try:
        return Component.deserialize_file(engine, str(path))
    except WasmtimeError as error:
        raise LinkError(str(error)) from error


def compile_component(engine: Engine, data: bytes) -> bytes:
    """The compiled code of a component; raises LinkError. A kilobyte of component may take minutes and gigabytes, so
    this belongs in a process of its own."""
    try:
        return bytes(Component(engine, data).serialize())
    except WasmtimeError as error:
        raise LinkError(str(error)) from error


def contract_of(engine: Engine, component: Component) -> Contract:
    """The functions of `pie:inferlet` that a component imports; raises ContractError."""
    found = {}
    for interface, extern in component.type.imports(engine).items():
        kind = extern.ty
        if interface.startswith(WORLD_PACKAGE) and isinstance(kind, ComponentInstanceType):
            for name, item in kind.exports(engine).items():
                function = item.ty
                if isinstance(function, FuncType):
                    found[interface.split("@")[0], name] = signature(function)
    return found


def check_contract(engine: Engine, component: Component, offered: Contract) -> None:
    """Raises LinkError if a component imports a function that this server does not offer."""
    for interface in component.type.imports(engine):
        if not interface.startswith((WORLD_PACKAGE, WASI_PACKAGES)):
            raise LinkError(f"imports {interface}, which is not part of the world of inferlets")
    for (interface, name), given in contract_of(engine, component).items():
        wanted = offered.get((interface, name))
        if wanted is None:
            raise LinkError(f"imports {interface}.{name}, which this server does not have")
        if wanted != given:
            raise LinkError(f"imports {interface}.{name} as {given}, this server has {wanted}")
