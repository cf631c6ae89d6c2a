"""Compiled components: compiling them, loading what was compiled, and what they import."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wasmtime import Engine, WasmtimeError
from wasmtime.component import Component, ComponentInstanceType, FuncType
from wasmtime.component import _types as wt

from .encoding.sections import number, sections
from .engine import LinkError

__all__ = [
    "WASI",
    "Component",
    "check_memories",
    "compile_component",
    "imported_functions",
    "load_compiled",
    "signature",
]

WASI = "wasi:"
MEMORIES = 5
"""The number of the section of a module that has its memories."""
MOST_PARTS = 1000
"""Parts of a function's type that are told: there may be a million in a component of 400 bytes."""
INNER = (1, 4)
"""Numbers of the sections of a component that have a module, or a component."""
TYPES = (7, 10, 11)
"""Numbers of the sections of a component that have types, imports and exports."""
MOST_TYPE_BYTES = 32 << 10
"""These sections have at most so many together: to go through what they tell takes a host a time that grows with the
square of it. All of WASI and ours has 15 KiB."""


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
        compiled = bytes(Component(engine, data).serialize())
    except WasmtimeError as error:
        raise LinkError(str(error)) from error
    check_memories(data)
    _check_types(data)
    return compiled


def imported_functions(engine: Engine, component: Component) -> Iterator[tuple[str, str, str]]:
    """Interface, name and signature of the functions that a component imports, those of WASI left out."""
    for interface, extern in component.type.imports(engine).items():
        kind = extern.ty
        if not interface.startswith(WASI) and isinstance(kind, ComponentInstanceType):
            for name, item in kind.exports(engine).items():
                if isinstance(item.ty, FuncType):
                    yield interface, name, signature(item.ty)


def describe(kind: Any, left: Iterator[int]) -> str:
    """A WIT type as text, structurally: two types are interchangeable if their texts are equal. `left`: has an item for
    each part of it that is told."""
    if next(left, None) is None:
        return "..."
    match kind:
        case None:
            return "_"
        case wt.ListType():
            return f"list<{describe(kind.element, left)}>"
        case wt.OptionType():
            return f"option<{describe(kind.payload, left)}>"
        case wt.ResultType():
            return f"result<{describe(kind.ok, left)}, {describe(kind.err, left)}>"
        case wt.TupleType():
            return f"tuple<{', '.join(describe(element, left) for element in kind.elements)}>"
        case wt.RecordType():
            return f"record{{{', '.join(f'{name}: {describe(field, left)}' for name, field in kind.fields)}}}"
        case wt.VariantType():
            return f"variant{{{', '.join(f'{name}: {describe(case, left)}' for name, case in kind.cases)}}}"
        case wt.EnumType():
            return f"enum{{{', '.join(kind.names)}}}"
    return type(kind).__name__.lower()


def signature(function: FuncType) -> str:
    """A function type as text."""
    left = iter(range(MOST_PARTS))
    parameters = ", ".join(describe(kind, left) for _, kind in function.params)
    return f"func({parameters}) -> {describe(function.result, left)}"


def check_memories(data: bytes) -> None:
    """Raises LinkError if a valid module, or those of a component, have more memories than the one that a store
    allows."""
    found, rest = 0, [memoryview(data)]
    while rest:
        whole = rest.pop()
        is_module = whole[4] == 1  # the version of its format
        for section, start, end in sections(whole):
            if is_module and section == MEMORIES:
                found += number(whole, start)[0]
            elif not is_module and section in INNER:
                rest.append(whole[start:end])
    if found > 1:
        raise LinkError(
            f"has {found} memories, and an inferlet gets one: build it as one module with one memory "
            "(`wasm-opt --multi-memory-lowering` makes one of several)"
        )


def _check_types(data: bytes) -> None:
    """Raises LinkError if a valid component tells more of types, imports and exports than a host goes through."""
    told = sum(end - start for section, start, end in sections(memoryview(data)) if section in TYPES)
    if told > MOST_TYPE_BYTES:
        raise LinkError(
            f"has {told} bytes of types, imports and exports, {MOST_TYPE_BYTES} at most: import what it calls alone"
        )
