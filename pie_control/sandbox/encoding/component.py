"""Makes a component of a core module, by the text format.

The module's imports are lowered with its own memory and `cabi_realloc`, which exist only once it is instantiated, and
for that it needs its imports. So it is given functions of a *shim*, which call those of a table; once the module is
there, a second module *fills* the table. In the text stands an empty module, whose section is replaced by the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import wasmtime

from ..wit import WitPackage
from . import wasi
from .module import HEADER, INITIALIZE, MEMORY, POST_RUN, REALLOC, RUN, CoreImport, CoreModule, read_module
from .sections import sized
from .types import Type, quoted

MODULE_SECTION = b"\1"
"""The number of the section of a component that has a core module."""


def encode(data: bytes, package: WitPackage) -> bytes:
    """The component of our world that a core module makes. Imports and exports have the names that wit-bindgen gives
    them. Raises LinkError: what is wrong with the module, and what to do."""
    package = wasi.beside(package)
    module = read_module(data, package)
    text = bytes(wasmtime.wat2wasm(_component(module, package)))
    before, empty, after = text.partition(MODULE_SECTION + sized(HEADER))
    assert empty, "the text has an empty module, which comes first"
    return before + MODULE_SECTION + sized(data) + after


def _component(module: CoreModule, package: WitPackage) -> str:
    options = f"(memory (core memory $program {quoted(MEMORY)}))"
    if REALLOC in module.exports:
        options += f" (realloc (core func $program {quoted(REALLOC)}))"
    after = f"(post-return (core func $program {quoted(POST_RUN)}))" if POST_RUN in module.exports else ""
    return "\n".join(
        [
            "(component",
            *_interfaces(module, package),
            "(core module)",
            *_shim(module.imports),
            "(core instance $program (instantiate 0",
            *_given(module, package),
            "))",
            *(_lowered(place, each, options) for place, each in enumerate(module.imports)),
            *_fill(module),
            f"(func (export {quoted(RUN)}) (result (result (error string)))",
            f"(canon lift (core func $program {quoted(RUN)}) {options} {after})))",
        ]
    )


def _interfaces(module: CoreModule, package: WitPackage) -> Iterator[str]:
    """The imports of the component: what the module uses, and the types of that."""
    used: dict[str, list[CoreImport]] = {}
    for each in module.imports:
        used.setdefault(each.interface, []).append(each)
    types = {interface: _named_types(imports, package) for interface, imports in used.items()}
    for source, foreign in _foreign_types(types, package).items():
        yield _interface(source, module.version, foreign, (), package)
        for kind in foreign:
            name = package.types[kind.text][1]
            yield f"(alias export ${source} {quoted(name)} (type ${name}))"
    for interface, imports in used.items():
        yield _interface(interface, module.version, types[interface], imports, package)


def _named_types(imports: Sequence[CoreImport], package: WitPackage) -> tuple[Type, ...]:
    """Records and enums of functions."""
    kinds = (kind for each in imports for kind in each.function.types())
    return tuple(dict.fromkeys(kind for kind in kinds if kind.text in package.types))


def _foreign_types(types: Mapping[str, Sequence[Type]], package: WitPackage) -> dict[str, tuple[Type, ...]]:
    """Types that an interface uses of another one, by that."""
    found: dict[str, dict[Type, None]] = {}
    for interface, kinds in types.items():
        for kind in kinds:
            source = package.types[kind.text][0]
            if source != interface:
                found.setdefault(source, {})[kind] = None
    return {source: tuple(kinds) for source, kinds in found.items()}


def _interface(
    interface: str, version: str, kinds: Sequence[Type], imports: Sequence[CoreImport], package: WitPackage
) -> str:
    """The import of an interface, with types and functions."""
    named: dict[str, str] = {}
    items = []
    for kind in kinds:
        source, name = package.types[kind.text]
        if source == interface:
            items.append(f"(type ${name}-of {kind.defined(named)})")
        else:
            items.append(f"(alias outer 1 ${name} (type ${name}-of))")
        items.append(f"(export {quoted(name)} (type ${name} (eq ${name}-of)))")
        named[kind.text] = f"${name}"
    for each in imports:
        names = package.parameters[each.interface, each.name]
        pairs = zip(names, each.function.parameters, strict=True)
        parameters = " ".join(f"(param {quoted(name)} {kind.written(named)})" for name, kind in pairs)
        result = each.function.result.written(named)
        result = f"(result {result})" if result else ""
        items.append(f"(export {quoted(each.name)} (func {parameters} {result}))")
    return f"(import {_full(interface, version, package)} (instance ${interface} {' '.join(items)}))"


def _full(interface: str, version: str, package: WitPackage) -> str:
    """The name of an interface as components import it. One of WASI has it already."""
    return quoted(interface if interface in wasi.INTERFACES else f"{package.name}/{interface}@{version}")


def _shim(imports: Sequence[CoreImport]) -> Iterator[str]:
    """A module whose functions call those of a table."""
    yield f'(core module $Shim (table (export "table") {len(imports)} {len(imports)} funcref)'
    for place, each in enumerate(imports):
        core = each.function.lowered()
        arguments = " ".join(f"(local.get {number})" for number in range(len(core.parameters)))
        yield f"(type $t{place} (func {core.written()}))"
        yield f'(func (export "{place}") (type $t{place})'
        yield f"(call_indirect (type $t{place}) {arguments} (i32.const {place})))"
    yield ")"
    yield "(core instance $shim (instantiate $Shim))"


def _given(module: CoreModule, package: WitPackage) -> Iterator[str]:
    """What the module is instantiated with: functions of the shim."""
    for interface in dict.fromkeys(each.interface for each in module.imports):
        yield f"(with {_full(interface, module.version, package)} (instance"
        for place, each in enumerate(module.imports):
            if each.interface == interface:
                yield f'(export {quoted(each.name)} (func $shim "{place}"))'
        yield "))"


def _lowered(place: int, each: CoreImport, options: str) -> str:
    return f"(core func $f{place} (canon lower (func ${each.interface} {quoted(each.name)}) {options}))"


def _fill(module: CoreModule) -> Iterator[str]:
    """A module that puts the functions into the table. Then the program initializes itself, if it asks for that."""
    numbered = range(len(module.imports))
    yield f'(core module $Fill (import "" "table" (table {len(numbered)} funcref))'
    for place in numbered:
        yield f'(import "" "{place}" (func $f{place} {module.imports[place].function.lowered().written()}))'
    given = ['(export "table" (table $shim "table"))', *(f'(export "{place}" (func $f{place}))' for place in numbered)]
    if INITIALIZE in module.exports:
        yield '(import "" "initialize" (func $initialize)) (start $initialize)'
        given.append(f'(export "initialize" (func $program {quoted(INITIALIZE)}))')
    yield f"(elem (i32.const 0) func {' '.join(f'$f{place}' for place in numbered)}))"
    yield f'(core instance (instantiate $Fill (with "" (instance {" ".join(given)}))))'
