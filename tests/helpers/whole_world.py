"""Components that import every function of a version of the API, each with a type given as text."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKEN = re.compile(r"->|[\w-]+|[<>{}(),:]")
_OUTCOME = """(core module $m (memory (export "memory") 1) (func (export "run") (result i32) (i32.const 0)))
  (core instance $m (instantiate $m))
  (func (export "run") (result (result (error string))) (canon lift (core func $m "run")
    (memory (core memory $m "memory"))))"""


class _Types:
    """Makes the types of one interface in the text format: records and enums must be defined and have a name."""

    def __init__(self) -> None:
        self.definitions: list[str] = []
        self._names: dict[str, str] = {}
        self._tokens: list[str] = []

    def function(self, signature: str) -> str:
        """`func(u32) -> string` in the text format."""
        self._tokens = _TOKEN.findall(signature)
        assert self._take() == "func"
        assert self._take() == "("
        parameters = [f'(param "p{n}" {kind})' for n, kind in enumerate(self._until(")"))]
        assert self._take() == "->"
        result = self._type()
        return f"(func {' '.join(parameters)}{f' (result {result})' if result else ''})"

    def _take(self) -> str:
        return self._tokens.pop(0)

    def _until(self, end: str) -> list[str]:
        found = []
        while self._tokens[0] != end:
            found.append(self._type())
            if self._tokens[0] == ",":
                self._take()
        self._take()
        return found

    def _type(self) -> str:
        name = self._take()
        if name in ("record", "enum"):
            return self._named(name)
        if self._tokens[:1] != ["<"]:
            return "" if name == "_" else name
        self._take()
        inner = self._until(">")
        if name == "result":
            ok, error = inner
            return f"(result{f' {ok}' if ok else ''}{f' (error {error})' if error else ''})"
        return f"({name} {' '.join(inner)})"

    def _named(self, kind: str) -> str:
        self._take()
        parts = []
        while self._tokens[0] != "}":
            name = self._take()
            if kind == "enum":
                parts.append(f'"{name}"')
            else:
                assert self._take() == ":"
                parts.append(f'(field "{name}" {self._type()})')
            if self._tokens[0] == ",":
                self._take()
        self._take()
        return self._define(f"({kind} {' '.join(parts)})")

    def _define(self, text: str) -> str:
        if text not in self._names:
            name = self._names[text] = f"t{len(self._names)}"
            self.definitions.append(f'(type $d{name} {text}) (export "{name}" (type ${name} (eq $d{name})))')
        return f"${self._names[text]}"


def component(version: str, signatures: Mapping[tuple[str, str], str]) -> str:
    """Imports these functions, by interface and name, of a version of the package."""
    imports = []
    for interface in sorted({interface for interface, _ in signatures}):
        types = _Types()
        functions = {name: types.function(text) for (of, name), text in signatures.items() if of == interface}
        exports = " ".join(f'(export "{name}" {kind})' for name, kind in functions.items())
        inside = f"{' '.join(types.definitions)} {exports}"
        imports.append(f'(import "pie:inferlet/{interface}@{version}" (instance {inside}))')
    return f"(component {' '.join(imports)} {_OUTCOME})"
