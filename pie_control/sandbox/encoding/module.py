"""What a core module imports and exports, checked against the contract."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import wasmtime

from ..components import check_memories
from ..contract import numbers, series
from ..engine import LinkError, new_engine
from ..wit import WitPackage
from . import wasi
from .interface import CoreMemory, Kind, interface_of
from .types import CoreType, Function, read_function

HEADER = b"\0asm\1\0\0\0"
"""The first bytes of a core module: the magic number and the version of its format."""
COMPONENT_HEADER = b"\0asm\x0d\0\1\0"
RUN, MEMORY, REALLOC, POST_RUN, INITIALIZE = "run", "memory", "cabi_realloc", "cabi_post_run", "_initialize"
"""Names of exports, as wit-bindgen gives them."""
EXPORTS = {
    RUN: CoreType((), ("i32",)),
    REALLOC: CoreType(("i32",) * 4, ("i32",)),
    POST_RUN: CoreType(("i32",), ()),
    INITIALIZE: CoreType((), ()),
}
_FEATURE = re.compile(r"not enabled|must be enabled|disabled|without the \S+ feature")
"""What wasmtime says of a module that needs what its settings exclude."""
MOST_NAMED = 5
"""Imports that a message names."""


@dataclass(frozen=True)
class CoreImport:
    """A function that a module imports, of an interface of the contract."""

    interface: str
    name: str
    function: Function


@dataclass(frozen=True)
class CoreModule:
    """A module that fits the contract. `version`: of the package, which its imports name. `exports`: the names in
    EXPORTS that it has."""

    version: str
    imports: tuple[CoreImport, ...]
    exports: frozenset[str]


def read_module(data: bytes, package: WitPackage) -> CoreModule:
    """Reads a core module. Raises LinkError: what is wrong with it, and what to do."""
    if data.startswith(COMPONENT_HEADER):
        raise LinkError("is a component already: run or upload it as it is")
    if not data.startswith(HEADER):
        raise LinkError("is no WebAssembly module: give a .wasm file that a compiler made for wasm32-unknown-unknown")
    try:
        wasmtime.Module.validate(new_engine(), data)
    except wasmtime.WasmtimeError as error:
        reason = _first_line(error)
        if _FEATURE.search(reason):
            raise LinkError(
                f"needs a part of WebAssembly that inferlets do not have; build it without: {reason}"
            ) from None
        raise LinkError(f"is no valid WebAssembly module; build it anew: {reason}") from None
    check_memories(data)
    found = interface_of(data)
    version, imports = _imports(found.imports, package)
    return CoreModule(version, imports, _exports(found.exports, bool(imports)))


def _imports(given: Sequence[tuple[str, str, Kind]], package: WitPackage) -> tuple[str, tuple[CoreImport, ...]]:
    foreign = [
        (module, name)
        for module, name, _ in given
        if not module.startswith(package.name + "/") and (module, name) not in wasi.SIGNATURES
    ]
    if foreign:
        raise LinkError(_foreign(foreign, package))
    found: dict[CoreImport, None] = {}
    versions: set[str] = set()
    for module, name, kind in given:
        interface, _, version = module.removeprefix(package.name + "/").partition("@")
        if module in wasi.INTERFACES:
            interface = module
        else:
            _check_version(module, version, package)
            versions.add(version)
        signature = package.signatures.get((interface, name))
        if signature is None or interface not in package.world:
            raise LinkError(
                f"imports `{name}` of {module}, which the contract does not have: `inferlet_sdk/wit` has all"
            )
        function = read_function(signature)
        if kind != function.lowered():
            has = kind if isinstance(kind, CoreType) else "no function"
            raise LinkError(f"imports `{name}` of {module} as {has}; the contract's is {function.lowered()}")
        if (each := CoreImport(interface, name, function)) in found:
            raise LinkError(f"imports `{name}` of {module} twice: declare it once, under one name")
        found[each] = None
    if len(versions) > 1:
        raise LinkError(f"imports several versions of {package.name}: {', '.join(sorted(versions))}; take one")
    return versions.pop() if versions else package.version, tuple(found)


def _check_version(module: str, version: str, package: WitPackage) -> None:
    if series(version) != series(package.version) or numbers(version) > numbers(package.version):
        raise LinkError(f"imports {module}, and this is version {package.version}: build it with the WIT files of that")


def _foreign(imports: Sequence[tuple[str, str]], package: WitPackage) -> str:
    """What a module imports that no inferlet may, and what to do about it."""
    named = ", ".join(f"{module}.{name}" for module, name in imports[:MOST_NAMED])
    more = f" and {len(imports) - MOST_NAMED} more" if len(imports) > MOST_NAMED else ""
    modules = {module for module, _ in imports}
    if any(module.startswith("wasi") for module in modules):
        advice = (
            "these are of an operating system; build it for wasm32-unknown-unknown, or without the standard "
            f"library (wasm32-freestanding). Of WASI {wasi.VERSION} there are `now` of both clocks, and "
            "`get-random-u64`"
        )
    elif any(module.startswith("__wbindgen") for module in modules):
        advice = "these are for browsers; build it without wasm-bindgen"
    elif any(module.startswith("GOT.") for module in modules):
        advice = "these are of a dynamic library: link it as a program, without `-shared` and `-fPIC`"
    elif ("env", "abort") in imports:
        advice = "give `--use abort=` to AssemblyScript's compiler"
    elif "env" in modules:
        advice = "these are undefined in the program: link what defines them, and let it export its memory"
    else:
        advice = f"an inferlet imports the interfaces of {package.name}@{package.version} alone"
    return f"imports {named}{more}: {advice}"


def _exports(given: Mapping[str, Kind], has_imports: bool) -> frozenset[str]:
    """Those in EXPORTS that a module has."""
    memory = given.get(MEMORY)
    if RUN not in given:
        raise LinkError(
            "exports no function `run`, which is the entry: `run` takes nothing and returns an address. In Rust "
            "`inferlet::main!(main);` makes it"
        )
    if not isinstance(memory, CoreMemory) or memory.is_64:
        raise LinkError("exports no memory of 32 bits under the name `memory`: link it so that it does")
    if has_imports and REALLOC not in given:
        raise LinkError(
            "exports no function `cabi_realloc`, by which it gets texts and lists: it takes the old address, the old "
            "size, the alignment and the new size, and returns an address"
        )
    for name, wanted in EXPORTS.items():
        if name in given and (kind := given[name]) != wanted:
            has = kind if isinstance(kind, CoreType) else "no function"
            raise LinkError(f"exports `{name}` as {has}; it must be {wanted}")
    return frozenset(EXPORTS.keys() & given.keys())


def _first_line(error: Exception) -> str:
    """The innermost cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r"^\d+: ", "", lines[-1]) if lines else ""
