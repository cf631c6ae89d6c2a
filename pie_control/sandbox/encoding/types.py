"""Types of the component model: read from text as `wit.py` gives it, written as component text, flat as core types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

MOST_FLAT_PARAMETERS = 16
"""More core parameters are passed in memory (canonical ABI)."""
NOTHING = "_"

_WORD = re.compile(r"[\w-]+|[<>{},:]")
_WIDE = {"u64": "i64", "s64": "i64", "f32": "f32", "f64": "f64"}


@dataclass(frozen=True)
class Type:
    """A type, structurally. `parts`: what it consists of. `names`: fields of a record, cases of an enum. `text`: the
    text from which it was read."""

    kind: str
    text: str
    parts: tuple[Type, ...] = ()
    names: tuple[str, ...] = ()

    def walk(self) -> Iterator[Type]:
        """The type and all types in it."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def flat(self) -> tuple[str, ...]:
        """The core types of a value."""
        match self.kind:
            case "_":
                return ()
            case "string" | "list":
                return ("i32", "i32")
            case "record" | "tuple":
                return tuple(core for part in self.parts for core in part.flat())
            case "option" | "result":
                return ("i32", *_joined([part.flat() for part in self.parts]))
        return (_WIDE.get(self.kind, "i32"),)

    def written(self, named: Mapping[str, str]) -> str:
        """The type in component text. `named`: identifiers of records and enums, by their text."""
        parts = [part.written(named) for part in self.parts if part.kind != NOTHING]
        match self.kind:
            case "record" | "enum":
                return named[self.text]
            case "list" | "option" | "tuple":
                return f"({self.kind} {' '.join(parts)})"
            case "result":
                good, bad = self.parts
                return f"(result {good.written(named)} {_error(bad, named)})"
        return "" if self.kind == NOTHING else self.kind

    def defined(self, named: Mapping[str, str]) -> str:
        """The definition of a record or enum in component text."""
        if self.kind == "enum":
            return f"(enum {' '.join(quoted(name) for name in self.names)})"
        fields = zip(self.names, self.parts, strict=True)
        return f"(record {' '.join(f'(field {quoted(name)} {part.written(named)})' for name, part in fields)})"


@dataclass(frozen=True)
class Function:
    """Types of a function's parameters, and of its result."""

    parameters: tuple[Type, ...]
    result: Type

    def types(self) -> Iterator[Type]:
        """All types in it."""
        for each in (*self.parameters, self.result):
            yield from each.walk()

    def lowered(self) -> CoreType:
        """What a core module imports for it (canonical ABI, `canon lower`)."""
        parameters = tuple(core for each in self.parameters for core in each.flat())
        if len(parameters) > MOST_FLAT_PARAMETERS:
            parameters = ("i32",)
        result = self.result.flat()
        return CoreType(parameters, result) if len(result) < 2 else CoreType((*parameters, "i32"), ())


@dataclass(frozen=True)
class CoreType:
    """The type of a core function."""

    parameters: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        return f"({', '.join(self.parameters)}) -> ({', '.join(self.results)})"

    def written(self) -> str:
        """The type in WebAssembly text."""
        return f"(param {' '.join(self.parameters)}) (result {' '.join(self.results)})"


def read_function(signature: str) -> Function:
    """The function that a signature of `wit.WitPackage` describes."""
    parameters, _, result = signature.removeprefix("func(").rpartition(") -> ")
    return Function(_read_all(parameters), _read_all(result)[0])


def quoted(name: str) -> str:
    """A name as a string of WebAssembly text."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read_all(text: str) -> tuple[Type, ...]:
    words = list(_WORD.finditer(text))
    found, place = [], 0
    while place < len(words):
        kind, place = _read(text, words, place)
        found.append(kind)
        place += 1  # a comma
    return tuple(found)


def _read(text: str, words: Sequence[re.Match[str]], place: int) -> tuple[Type, int]:
    """The type that begins at a word, and the number of the word behind it."""
    begin = words[place]
    place += 1
    parts: list[Type] = []
    names: list[str] = []
    if place < len(words) and words[place][0] in "<{":
        while words[place][0] not in ">}":
            place += 1  # the bracket, or a comma
            if begin[0] in ("record", "enum"):
                names.append(words[place][0])
                place += 1
            if begin[0] == "record":
                place += 1  # a colon
            if begin[0] != "enum":
                part, place = _read(text, words, place)
                parts.append(part)
        place += 1
    return Type(begin[0], text[begin.start() : words[place - 1].end()], tuple(parts), tuple(names)), place


def _joined(cases: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Core types that hold any of the cases."""
    joined = []
    for place in range(max(map(len, cases))):
        kinds = {case[place] for case in cases if len(case) > place}
        joined.append(kinds.pop() if len(kinds) == 1 else "i32" if kinds == {"i32", "f32"} else "i64")
    return tuple(joined)


def _error(kind: Type, named: Mapping[str, str]) -> str:
    return "" if kind.kind == NOTHING else f"(error {kind.written(named)})"
