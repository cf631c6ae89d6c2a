"""Compiled components: compiling them, loading what was compiled, and what they import."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wasmtime import Engine, WasmtimeError
from wasmtime.component import Component, ComponentInstanceType, FuncType
from wasmtime.component import _types as wt

from .engine import LinkError

__all__ = ["WASI", "Component", "compile_component", "imported_functions", "load_compiled", "signature"]

WASI = "wasi:"


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


def imported_functions(engine: Engine, component: Component) -> Iterator[tuple[str, str, str]]:
    """Interface, name and signature of the functions that a component imports, those of WASI left out."""
    for interface, extern in component.type.imports(engine).items():
        kind = extern.ty
        if not interface.startswith(WASI) and isinstance(kind, ComponentInstanceType):
            for name, item in kind.exports(engine).items():
                if isinstance(item.ty, FuncType):
                    yield interface, name, signature(item.ty)


def describe(kind: Any) -> str:
    """A WIT type as text, structurally: two types are interchangeable if their texts are equal."""
    match kind:
        case None:
            return "_"
        case wt.ListType():
            return f"list<{describe(kind.element)}>"
        case wt.OptionType():
            return f"option<{describe(kind.payload)}>"
        case wt.ResultType():
            return f"result<{describe(kind.ok)}, {describe(kind.err)}>"
        case wt.TupleType():
            return f"tuple<{', '.join(map(describe, kind.elements))}>"
        case wt.RecordType():
            return f"record{{{', '.join(f'{name}: {describe(field)}' for name, field in kind.fields)}}}"
        case wt.EnumType():
            return f"enum{{{', '.join(kind.names)}}}"
    return type(kind).__name__.lower()


def signature(function: FuncType) -> str:
    """A function type as text."""
    parameters = ", ".join(describe(kind) for _, kind in function.params)
    return f"func({parameters}) -> {describe(function.result) if function.result else '_'}"
