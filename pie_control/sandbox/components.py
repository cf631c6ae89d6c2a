"""Compiled components: compiling them, keeping them in files, and checking what they import."""

from __future__ import annotations

import logging
import os
import tempfile
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
    "try_load_compiled",
    "write_atomically",
]

logger = logging.getLogger(__name__)

WORLD_PACKAGE = "pie:inferlet/"
WASI_PACKAGES = "wasi:"
Contract = dict[tuple[str, str], str]
"""Signatures of functions by (interface without version, name)."""


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file so that a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def try_load_compiled(engine: Engine, path: Path) -> Component | None:
    """The compiled component in a file; None if there is none or it is damaged."""
    if not path.exists():
        return None
    try:
        return Component.deserialize_file(engine, str(path))
    except WasmtimeError as error:
        logger.warning("compiling %s again: %s", path, error)
        return None


def compile_component(engine: Engine, data: bytes, path: Path) -> Component:
    """Compiles a component and keeps the result in a file; raises LinkError. A large component takes seconds: call this
    in a thread."""
    try:
        compiled = Component(engine, data)
    except WasmtimeError as error:
        raise LinkError(str(error)) from error
    write_atomically(path, bytes(compiled.serialize()))
    return compiled


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
