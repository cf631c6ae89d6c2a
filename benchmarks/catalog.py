"""Finds the benchmarks: each module here, or in a folder here, that has an `async def run`.

`Benchmark` says what such a module must have. Finding them imports none, because some need packages that are not
installed everywhere.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

FOLDER = Path(__file__).resolve().parent


class Benchmark(Protocol):
    """A benchmark's module. The first line of its docstring is the question. `FULL` and `QUICK` are plans, frozen
    dataclasses of one type, whose fields are the options (`plans`). A third plan, `TINY`, may run where these cannot.

    Optional: `summary(rows) -> str`, printed instead of the table; `passed(rows) -> bool`, for the exit status; and
    `add_options` and `chosen`, which replace those of `plans`.
    """

    FULL: Any
    QUICK: Any

    async def run(self, plan: Any) -> Sequence[Any]:
        """Runs the benchmark; returns its rows, which are dataclasses."""


@dataclass(frozen=True)
class Entry:
    """A benchmark that is not imported yet."""

    name: str
    module: str
    description: str

    @property
    def question(self) -> str:
        return self.description.partition("\n")[0]

    def load(self) -> Benchmark:
        return cast(Benchmark, importlib.import_module(self.module))


@functools.cache
def find() -> Mapping[str, Entry]:
    """All benchmarks, by name."""
    entries = [_entry(path) for path in (*FOLDER.glob("*.py"), *FOLDER.glob("*/*.py"))]
    return {entry.name: entry for entry in sorted(filter(None, entries), key=lambda entry: entry.name)}


def _entry(path: Path) -> Entry | None:
    tree = ast.parse(path.read_text("utf-8"))
    if not any(isinstance(node, ast.AsyncFunctionDef) and node.name == "run" for node in tree.body):
        return None
    module = ".".join(("benchmarks", *path.relative_to(FOLDER).with_suffix("").parts))
    return Entry(path.stem, module, ast.get_docstring(tree) or "")
