"""In which tier a test is, by what it uses: nobody marks a test by hand (docs/testing.md).

What a test uses is found in the syntax trees: names in its body, its decorators and its arguments (fixtures), and what
these names stand for in its file, in files named conftest and in helpers. The search ends at modules of the product.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from tests.helpers.tree import ROOT, parse

Value = TypeVar("Value")

TIERS = ("fast", "test", "all")

SEARCHED = ("tests", "pie_control.testing", "testing", "benchmarks")
"""Packages into whose functions the search goes."""

HEAVY = (
    "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
    "asyncio.start_server",
    "asyncio.start_unix_server",
    "concurrent.futures.ProcessPoolExecutor",
    "http.server",
    "importlib.util.spec_from_file_location",
    "multiprocessing",
    "os.fork",
    "peft",
    "socket.create_server",
    "subprocess",
    "torch._dynamo",
    "torch.optim",
    "transformers",
    "triton",
    "wasmtime",
    "zmq",
    "benchmarks.__main__",
    "examples.checks.load",
    "examples.world.serving.serving",
    "pie_control.application.process_link",
    "pie_control.authoring.build",
    "pie_control.authoring.check",
    "pie_control.authoring.native.server",
    "pie_control.cli.commands",
    "pie_control.cli.main",
    "pie_control.cli.targets.OwnServer",
    "pie_control.dashboard.checking",
    "pie_control.http_server.listening",
    "pie_control.http_server.server",
    "pie_control.images.reader.ImageReader",
    "pie_control.inference_client.client",
    "pie_control.inference_client.process",
    "pie_control.processes.process",
    "pie_control.programs.python_guest",
    "pie_control.runtime.build_server",
    "pie_control.runtime.start_worker",
    "pie_control.sandbox",
    "pie_inference.assembly",
    "pie_inference.cpu_kernels",
    "pie_inference.inspection",
    "pie_inference.models.borrowed.code",
    "pie_inference.models.borrowed.ours",
    "pie_inference.models.borrowed.proving",
    "pie_inference.options.compiling",
    "pie_inference.serving.worker",
)
"""Modules and functions that start processes and servers, run the sandbox or take seconds to load."""

SLOW_TO_LOAD = ("transformers", "peft", "triton")
"""A file that imports one of them at its top has no fast test."""


@functools.cache
def is_heavy(name: str) -> bool:
    return _is_one_of(name, HEAVY)


def _is_one_of(name: str, those: tuple[str, ...]) -> bool:
    return name.startswith(those) and any(name == one or name.startswith(f"{one}.") for one in those)


Place = tuple[Path, str]
"""A file, and a name that it defines."""

BENCHMARK_RUN: Place = (ROOT / "tests" / "benchmarks" / "running.py", "run")


@dataclass(frozen=True, eq=False)
class Module:
    """A file: what its top-level names stand for. `imported`: dotted names; `defined`: statements."""

    imported: Mapping[str, str]
    defined: Mapping[str, tuple[ast.stmt, ...]]


@functools.cache
def module_at(path: Path) -> Module:
    imported: dict[str, str] = {}
    defined: dict[str, tuple[ast.stmt, ...]] = {}
    for statement in _flat(parse(path).body):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            imported.update(_imports(statement, path))
        for name in _names_made(statement):
            defined[name] = (*defined.get(name, ()), statement)
    return Module(imported, defined)


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements with those under `if` and `try`, but not what is there for type checkers."""
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            yield from _flat(statement.body)


def _imports(statement: ast.Import | ast.ImportFrom, path: Path) -> Iterator[tuple[str, str]]:
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        return
    source = statement.module or ""
    if statement.level:
        folder = path.parents[statement.level - 1].relative_to(ROOT)
        source = ".".join([*folder.parts, *([source] if source else [])])
    for alias in statement.names:
        yield alias.asname or alias.name, f"{source}.{alias.name}"


def _names_made(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for node in (node for target in targets for node in ast.walk(target)):
            if isinstance(node, ast.Name):
                yield node.id


@functools.cache
def heavy_uses(path: Path, test: str) -> frozenset[str]:
    """The heavy modules and functions that a test of a file uses."""
    found = frozenset(name for name in module_at(path).imported.values() if _is_one_of(name, SLOW_TO_LOAD))
    return found.union(*(heavy for heavy, _ in map(_leads_to, _reached(path, test))))


def runs_a_benchmark(path: Path, test: str) -> bool:
    return BENCHMARK_RUN in _reached(path, test)


@functools.cache
def _reached(path: Path, test: str) -> frozenset[Place]:
    """Definitions that a test uses, directly or not."""
    done: set[Place] = set()
    waiting: list[Place] = [(path, test), (path, "pytestmark")]
    while waiting:
        here = waiting.pop()
        if here not in done:
            done.add(here)
            waiting += _leads_to(here)[1]
    return frozenset(done)


@functools.cache
def _leads_to(place: Place) -> tuple[frozenset[str], tuple[Place, ...]]:
    """What the definition of a name uses: heavy things, and other definitions."""
    targets = {_stands_for(place[0], name) for name in set(_used(*place))}
    heavy = frozenset(one for one in targets if isinstance(one, str) and is_heavy(one))
    return heavy, tuple(one for one in targets if isinstance(one, tuple))


def _used(path: Path, name: str) -> Iterator[str]:
    """Dotted names in what defines a name, and the fixtures that it asks for."""
    for statement in module_at(path).defined.get(name, ()):
        local: dict[str, str] = {}
        for node in _nodes(statement):
            kind = type(node)
            if kind is ast.Name or kind is ast.Attribute:
                yield _dotted(node, local)
            elif kind is ast.arg:
                yield node.arg
            elif kind is ast.Call and _is_named(node.func, "usefixtures", "importorskip", "Late"):
                yield from (str(each.value) for each in node.args if isinstance(each, ast.Constant))
            elif kind is ast.Import or kind is ast.ImportFrom:
                local.update(_imports(node, path))
                yield from local.values()


def _nodes(top: ast.AST) -> Iterator[Any]:
    """As `ast.walk`, which takes much longer, but without contexts and operators."""
    waiting = [top]
    for node in waiting:
        yield node
        for value in node.__dict__.values():
            if type(value) is list:
                waiting.extend(each for each in value if isinstance(each, ast.AST))
            elif isinstance(value, ast.AST) and value.__dict__:
                waiting.append(value)


def _is_named(function: ast.expr, *names: str) -> bool:
    return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) in names


def _dotted(node: ast.expr, local: Mapping[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([local.get(node.id, node.id), *reversed(parts)])


@functools.cache
def _stands_for(path: Path, name: str) -> Place | str | None:
    """Where a name that a file uses is defined, or the dotted name that it is of another package; None: nowhere."""
    first, _, rest = name.partition(".")
    module = module_at(path)
    if first in module.defined:
        return path, first
    if first in module.imported:
        return _defined_at(f"{module.imported[first]}.{rest}".strip("."))
    for fixtures in _fixture_files(path.parent):
        if first in module_at(fixtures).defined:
            return fixtures, first
    return _defined_at(name) if "." in name or is_heavy(name) else None


@functools.cache
def _fixture_files(folder: Path) -> tuple[Path, ...]:
    """Files named conftest whose fixtures tests of a folder have, the nearest first."""
    own = folder / "conftest.py"
    above = () if folder in (ROOT, folder.parent) else _fixture_files(folder.parent)
    return (own, *above) if own.exists() else above


@functools.cache
def _defined_at(dotted: str) -> Place | str:
    """A name of a searched package is followed to its file; another stays as it is."""
    if is_heavy(dotted) or not _is_one_of(dotted, SEARCHED):
        return dotted
    parts = dotted.split(".")
    for count in range(len(parts) - 1, 0, -1):
        base = ROOT.joinpath(*parts[:count])
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.exists():
                module, name = module_at(file), parts[count]
                again = module.imported.get(name)
                return _defined_at(again) if again and again != dotted else (file, name)
    return dotted


def names_of_tests(path: Path) -> list[str]:
    """Names of the test functions and test classes of a file."""
    return [name for name in module_at(path).defined if name.startswith(("test_", "Test"))]


def has_fast_tests(path: Path) -> bool:
    return any(not heavy_uses(path, name) for name in names_of_tests(path))


WHOLE = pytest.mark.whole


def is_fast(item: pytest.Item) -> bool:
    """Whether a test needs no process, server or sandbox. Looked up where it is asked for: of `make test`, each process
    runs a part of the tests alone."""
    return isinstance(item, pytest.Function) and not heavy_uses(item.path, _defined_as(item))


def _defined_as(item: pytest.Function) -> str:
    return item.cls.__name__ if item.cls else item.originalname


def mark(items: Iterable[pytest.Item]) -> None:
    """Marks as `whole` what runs a benchmark, but the first of each file, and what runs kernels for AVX-512 where there
    are tiles, which compile for 25 s: `make test` has no time for them."""
    have_run: set[Path] = set()
    for item in items:
        if hasattr(item, "callspec") and "avx512" in map(item.callspec.params.get, ("library", "make_backend", "isa")):
            item.add_marker(WHOLE)
        if item.path.parent != BENCHMARK_RUN[0].parent or not isinstance(item, pytest.Function):
            continue
        if runs_a_benchmark(item.path, _defined_as(item)):
            item.add_marker(WHOLE) if item.path in have_run else have_run.add(item.path)


def is_in(tier: str, item: pytest.Item) -> bool:
    whole = item.get_closest_marker("whole") is not None
    return tier == "all" or not (whole or (tier == "fast" and not is_fast(item)))


def corpus(values: Iterable[Value], kind: Callable[[Value], Hashable]) -> list[Any]:
    """Parameters of a test: the first of each kind belongs to `make test`, the others to `make test-all` only."""
    seen: set[Hashable] = set()
    parameters = []
    for value in values:
        key = kind(value)
        parameters.append(pytest.param(value, marks=[WHOLE] if key in seen else []))
        seen.add(key)
    return parameters


def pairs(*axes: Iterable[Any]) -> list[Any]:
    """Parameters of a test that takes a value of each axis: `make test` has as many as pair every two values once, and
    `make test-all` all of them."""
    values = [list(axis) for axis in axes]
    every = list(itertools.product(*(range(len(axis)) for axis in values)))
    missing = {pair for places in every for pair in _pairs_of(places)}
    chosen = set()
    while missing:
        best = max(every, key=lambda places: len(missing & _pairs_of(places)))
        missing -= _pairs_of(best)
        chosen.add(best)
    return [
        pytest.param(*map(list.__getitem__, values, places), marks=[] if places in chosen else [WHOLE])
        for places in every
    ]


@functools.cache
def _pairs_of(places: tuple[int, ...]) -> frozenset[tuple[tuple[int, int], ...]]:
    """Each two axes with the places on them."""
    return frozenset(itertools.combinations(enumerate(places), 2))


def set_examples(function: Any, tier: str) -> None:
    """How many examples a property is tried with: at most FEW in the fast tier, else a quarter of what it says, but not
    less than FEW, and MORE times what it says in `all`."""
    if not getattr(function, "is_hypothesis_test", False) or getattr(function, "examples_are_set", False):
        return
    given = getattr(function, SETTINGS, None) or settings.default
    assert given is not None
    most = given.max_examples
    count = {"fast": min(most, FEW), "test": max(most // 4, min(most, FEW)), "all": most * MORE}[tier]
    setattr(function, SETTINGS, settings(given, max_examples=count))
    function.examples_are_set = True


SETTINGS = "_hypothesis_internal_use_settings"
"""Where Hypothesis keeps the settings of a test. tests/architecture says whether it still does."""
FEW = 15
MORE = 3
