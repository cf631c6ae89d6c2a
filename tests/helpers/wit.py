"""Reads the WIT files: which functions each interface has. Enough of a parser for our own files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.helpers.tree import ROOT

WIT_FOLDER = ROOT / "inferlet_sdk" / "wit"

_INTERFACE = re.compile(r"^interface ([\w-]+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"^  %?([\w-]+): func\(([^)]*)\)", re.MULTILINE)
_WORLD = re.compile(r"^world ([\w-]+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class WitFunction:
    """A function of an interface. Names are as in Python: snake case."""

    interface: str
    name: str
    parameters: tuple[str, ...]


def _snake(name: str) -> str:
    return name.strip().removeprefix("%").replace("-", "_")


def _text() -> str:
    text = "\n".join(path.read_text() for path in sorted(WIT_FOLDER.glob("*.wit")))
    return re.sub(r"//.*", "", text)


def functions() -> list[WitFunction]:
    """All functions of all interfaces."""
    found = []
    for interface, body in _INTERFACE.findall(_text()):
        for name, parameters in _FUNCTION.findall(body):
            names = tuple(_snake(p.split(":")[0]) for p in parameters.split(",") if p.strip())
            found.append(WitFunction(_snake(interface), _snake(name), names))
    return found


def error_codes() -> set[str]:
    """The codes that types.wit documents."""
    return set(re.findall(r"^  /// - `([\w-]+)`: ", (WIT_FOLDER / "types.wit").read_text(), re.MULTILINE))


def world_imports(world: str) -> set[str]:
    """Interfaces that a world imports itself."""
    bodies = dict(_WORLD.findall(_text()))
    return {_snake(name) for name in re.findall(r"import ([\w-]+);", bodies[world])}
