"""What a valid core module imports and exports, and their types, read from its bytes: the C API of wasmtime ends the
process where one has a vector or a typed reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..components import MEMORIES
from .sections import number, sections
from .types import CoreType

TYPES, IMPORTS, FUNCTIONS, EXPORTS = 1, 2, 3, 7
"""Numbers of sections."""
FUNCTION, TABLE, MEMORY, GLOBAL, TAG = range(5)
"""Kinds of imports and exports."""
TYPED_REFERENCES = (0x63, 0x64)
"""Begin the types of references that say to what, in a number behind them."""
HAS_MOST, IS_64, HAS_PAGE_SIZE = 1, 4, 8
"""Bits of the limits of tables and memories."""
VALUES = {0x7F: "i32", 0x7E: "i64", 0x7D: "f32", 0x7C: "f64", 0x7B: "v128"}


class CoreMemory(NamedTuple):
    """The type of a memory. `is_64`: its addresses have 64 bits."""

    is_64: bool


Kind = CoreType | CoreMemory | None
"""None: neither a function nor a memory."""


@dataclass(frozen=True)
class Interface:
    """`imports`: module, name and kind of each."""

    imports: list[tuple[str, str, Kind]]
    exports: dict[str, Kind]


def interface_of(data: bytes) -> Interface:
    """That of a valid module without types of the proposal GC."""
    found = {section: _Reader(memoryview(data), start) for section, start, _ in sections(memoryview(data))}
    types = [each.function() for each in _listed(found.get(TYPES))]
    imports = [(each.text(), each.text(), *each.imported(types)) for each in _listed(found.get(IMPORTS))]
    kinds: dict[int, list[Kind]] = {FUNCTION: [], MEMORY: []}
    for _, _, which, kind in imports:
        if which in kinds:
            kinds[which].append(kind)
    kinds[FUNCTION] += [types[each.number()] for each in _listed(found.get(FUNCTIONS))]
    kinds[MEMORY] += [each.memory() for each in _listed(found.get(MEMORIES))]
    exports: dict[str, Kind] = {}
    for each in _listed(found.get(EXPORTS)):
        name, which, place = each.text(), each.byte(), each.number()
        exports[name] = kinds[which][place] if which in kinds else None
    return Interface([(module, name, kind) for module, name, _, kind in imports], exports)


class _Reader:
    """Reads one thing after the other."""

    def __init__(self, data: memoryview, place: int) -> None:
        self._data = data
        self._place = place

    def byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def number(self) -> int:
        value, self._place = number(self._data, self._place)
        return value

    def text(self) -> str:
        size = self.number()
        self._place += size
        return bytes(self._data[self._place - size : self._place]).decode()

    def value(self) -> str:
        kind = self.byte()
        if kind in TYPED_REFERENCES:
            self.number()
        return VALUES.get(kind, "reference")

    def function(self) -> CoreType:
        self.byte()  # it says that this is the type of a function
        parameters, results = ([each.value() for each in _listed(self)] for _ in range(2))
        return CoreType(tuple(parameters), tuple(results))

    def memory(self) -> CoreMemory:
        bits = self.number()
        for _ in range(1 + bool(bits & HAS_MOST) + bool(bits & HAS_PAGE_SIZE)):
            self.number()
        return CoreMemory(bool(bits & IS_64))

    def imported(self, types: list[CoreType]) -> tuple[int, Kind]:
        """What is imported: a function, a table, a memory, a global or a tag; and its kind."""
        which = self.byte()
        if which == FUNCTION:
            return which, types[self.number()]
        if which == MEMORY:
            return which, self.memory()
        if which == TABLE:
            self.value()
            self.memory()  # the limits of a table are written alike
        elif which == GLOBAL:
            self.value()
            self.byte()
        else:
            self.byte()
            self.number()
        return which, None


def _listed(reader: _Reader | None) -> Iterator[_Reader]:
    """The reader at each item of a list, whose number comes first; None: there is no list."""
    if reader is not None:
        for _ in range(reader.number()):
            yield reader
