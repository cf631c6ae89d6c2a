"""Compiled components: compiling them, and loading what was compiled."""

from __future__ import annotations

from pathlib import Path

from wasmtime import Engine, WasmtimeError
from wasmtime.component import Component

from .engine import LinkError

__all__ = ["Component", "compile_component", "load_compiled"]


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
