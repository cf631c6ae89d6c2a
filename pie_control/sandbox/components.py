"""Compiled components: compiling them, and keeping them in files."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

from wasmtime import Engine, WasmtimeError
from wasmtime.component import Component

from .engine import LinkError

__all__ = [
    "Component",
    "compile_component",
    "try_load_compiled",
    "write_atomically",
]

logger = logging.getLogger(__name__)


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
