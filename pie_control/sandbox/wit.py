"""Reads the functions of a package of WIT files, as text that `values.signature` gives for those of a component.

Enough of a parser for our own files: they are written in one style, and no two of a package's types have one name. A
test compares it with what wasmtime reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = re.compile(r"^package ([\w:-]+)@([\w.-]+);", re.MULTILINE)
_WORLD = re.compile(r"^world inferlet \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_IMPORT = re.compile(r"^  import ([\w-]+);", re.MULTILINE)
_INTERFACE = re.compile(r"^interface ([\w-]+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_TYPE = re.compile(r"^  (record|enum) ([\w-]+) \{([^}]*)\}", re.MULTILINE)
_FUNCTION = re.compile(r"^  %?([\w-]+): func\(([^)]*)\)(?:\s*->\s*([^;]+))?;", re.MULTILINE)
_FIELD = re.compile(r"%?([\w-]+): ")
_TYPE_NAME = re.compile(r"[a-z][\w-]*(?![\w:-])")


@dataclass(frozen=True)
class WitPackage:
    """Signatures and names of parameters of functions, and cases of enums, by interface and name. `types`: interface
    and name of each record and enum, by its text in signatures. `world`: the interfaces that inferlets may import."""

    name: str
    version: str
    signatures: Mapping[tuple[str, str], str]
    parameters: Mapping[tuple[str, str], tuple[str, ...]]
    enums: Mapping[tuple[str, str], tuple[str, ...]]
    types: Mapping[str, tuple[str, str]]
    world: frozenset[str]


def read_package(folder: Path) -> WitPackage:
    """The package whose files are in a folder."""
    texts = [path.read_text("utf-8") for path in sorted(folder.glob("*.wit"))]
    ((package, version),) = {found.groups() for text in texts if (found := _PACKAGE.search(text))}
    text = re.sub(r"//.*", "", "\n".join(texts))
    types: dict[str, str] = {}
    for kind, name, body in _TYPE.findall(text):
        content = _plain(body) if kind == "enum" else _expanded(body, types)
        types[name] = f"{kind}{{{content}}}"
    interfaces = _INTERFACE.findall(text)
    functions = {
        (interface, name): (parameters, result)
        for interface, body in interfaces
        for name, parameters, result in _FUNCTION.findall(body)
    }
    defined = [(of, kind, name, body) for of, content in interfaces for kind, name, body in _TYPE.findall(content)]
    return WitPackage(
        name=package,
        version=version,
        signatures={key: _signature(*function, types) for key, function in functions.items()},
        parameters={key: tuple(_FIELD.findall(parameters)) for key, (parameters, _) in functions.items()},
        enums={(of, name): tuple(_plain(body).split(", ")) for of, kind, name, body in defined if kind == "enum"},
        types={types[name]: (of, name) for of, _, name, _ in defined},
        world=frozenset(name for body in _WORLD.findall(text) for name in _IMPORT.findall(body)),
    )


def _signature(parameters: str, result: str, types: Mapping[str, str]) -> str:
    kinds = _FIELD.sub("", _plain(parameters))
    return f"func({_expanded(kinds, types)}) -> {_expanded(result, types) or '_'}"


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(", ")


def _expanded(text: str, types: Mapping[str, str]) -> str:
    """Types, with what the package defines in place of its names."""
    return _TYPE_NAME.sub(lambda name: types.get(name[0], name[0]), _plain(text))
