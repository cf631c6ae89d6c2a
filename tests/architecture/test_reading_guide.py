"""The reading guide names what exists: files, functions of these files, methods of their classes."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.tree import ROOT, parse

PACKAGES = ("pie_control", "pie_inference", "inferlet_sdk")
FILES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
GUIDE = (ROOT / "docs" / "reading-guide.md").read_text()
CELLS = [line.split("|")[2] for line in GUIDE.splitlines() if line.startswith("| ") and "`" in line.split("|")[2]]

Functions = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def tree(path: Path) -> ast.Module:
    return parse(path)


@functools.cache
def members() -> dict[str, set[str]]:
    """Methods by class, with those of its bases."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                own.setdefault(node.name, set()).update(one.name for one in node.body if isinstance(one, Functions))
                bases.setdefault(node.name, set()).update(_name(base) for base in node.bases)
    return {name: found.union(*(own.get(base, set()) for base in bases[name])) for name, found in own.items()}


def _name(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def functions(path: Path) -> set[str]:
    """Functions of a module, and the methods of its classes."""
    return {node.name for node in ast.walk(tree(path)) if isinstance(node, Functions)}


@functools.cache
def plain_functions() -> set[str]:
    """Functions of modules that others may call."""
    found = {node.name for path in FILES for node in tree(path).body if isinstance(node, Functions)}
    return {name for name in found if not name.startswith("_")}


def paths(name: str) -> list[Path]:
    """Files, or those of a folder, whose path ends so."""
    inside = [path for path in FILES if f"/{name}" in f"/{path.relative_to(ROOT)}"]
    return [path for path in inside if name.endswith("/") or str(path).endswith(f"/{name}")]


def unknown(cell: str) -> Iterator[str]:
    """Names of a cell of the guide that do not exist. A name without a class belongs to the class or the file that is
    named before it, or it is a function of a module."""
    known: set[str] = set()
    for name in re.findall(r"`([\w./]+)`", cell):
        owner, _, member = name.rpartition(".")
        if name.endswith((".py", "/")):
            known = {one for path in paths(name) for one in functions(path)}
            found = bool(paths(name))
        elif owner and owner[0].isupper():
            known = members().get(owner, set())
            found = member in known
        elif owner:
            found = any(member in functions(path) for path in paths(f"{owner}/") + paths(f"{owner}.py"))
        else:
            found = name in known | plain_functions() | members().keys()
        if not found:
            yield name


def test_the_guide_is_read() -> None:
    assert len(CELLS) > 40


@pytest.mark.parametrize(
    "wrong", ["Runtime.launch", "engine/ring.py", "Scheduler._form", "Session.launch", "protocol.crypt", "_form"]
)
def test_what_does_not_exist_is_found(wrong: str) -> None:
    assert list(unknown(f"`Scheduler.turn`, `{wrong}`, `place`")) == [wrong]


@pytest.mark.parametrize("cell", CELLS)
def test_what_the_guide_names_exists(cell: str) -> None:
    assert list(unknown(cell)) == [], "docs/reading-guide.md names what does not exist"
