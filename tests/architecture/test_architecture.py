"""Imports flow one way, and what is heavy has one home (`docs/architecture.md`)."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.tree import ROOT, parse

PACKAGES = ("pie_control", "pie_inference", "inferlet_sdk")

PURE_CORE = ("pie_control.resources", "pie_control.calls", "pie_control.scheduling")
BASICS = ("pie_control.ids", "pie_control.errors", "pie_control.record", "pie_control.tenants")
MAY_IMPORT = {
    "pie_control.scheduling": (*PURE_CORE, *BASICS),
    "pie_control.calls": ("pie_control.calls", "pie_control.resources", *BASICS),
    "pie_control.resources": ("pie_control.resources", *BASICS),
    "pie_control.tenants": ("pie_control.tenants", "pie_control.errors", "pie_control.record"),
    "pie_control": ("pie_control",),
    "pie_inference.protocol": ("pie_inference.protocol",),
    "pie_inference": ("pie_inference",),
    "inferlet_sdk": ("inferlet_sdk",),
}
"""What a package may import of ours, the most special entry first; OPEN is open to pie_control."""
OPEN = (
    "pie_inference.amounts",
    "pie_inference.control_groups",
    "pie_inference.protocol",
    "pie_inference.options",
    "pie_inference.grammars",
    "pie_inference.testing.byte_tokenizer",
    "pie_inference.testing.small_vision",
)

BUNDLED = "pie_control.programs.bundled"
BESIDE_SDK = ("pie_control.authoring", BUNDLED)
"""Import the SDK, too: programs run there outside of the sandbox; and what is run inside of it."""

PURE = {package: {"numpy", "msgspec"} for package in PURE_CORE}
"""Packages that import no third-party module but these. msgspec: commands and other values are its structs,
which are made fast and can cross to another process; it has no state and does no I/O."""

FORBIDDEN = {package: {"asyncio", "socket", "threading", "time"} for package in PURE_CORE}
"""Standard modules by which state or time would get into a pure package."""

HOMES = {
    "torch": ("pie_inference",),
    "transformers": ("pie_inference.models.borrowed",),
    "huggingface_hub": ("pie_inference.loading.hub",),
    "triton": (
        "pie_inference.adapters.products.triton_kernels",
        "pie_inference.attention.triton.kernels",
        "pie_inference.device.triton_support",
        "pie_inference.ops.triton_kernels",
        "pie_inference.quantization.triton_kernels",
        "pie_inference.recurrence.triton_kernels",
    ),
    "wasmtime": ("pie_control.sandbox",),
    "llguidance": ("pie_inference.grammars.engine", "pie_inference.grammars.sources"),
    "zmq": ("pie_control.inference_client", "pie_inference.serving.zeromq"),
    "fastapi": ("pie_control.http_server",),
    "starlette": ("pie_control.http_server",),
    "uvicorn": (
        "pie_control.http_server.server",
        "pie_control.http_server.protocols",
        "pie_control.http_server.session.protocol",
    ),
    "httpx": ("pie_control.client",),
    "opentelemetry": ("pie_control.observation.traces",),
    "prometheus_client": ("pie_control.observation.prometheus",),
    "PIL": ("pie_control.images.prepare",),
    "websockets": ("pie_control.client.connection",),
    "wit_world": ("inferlet_sdk.guest.entry",),
}
"""The only modules or packages that import a heavy or optional dependency."""

MOST_LINES = 400
LARGE = {"pie_control.sandbox.values"}
"""Files beyond it: all raw calls into wasmtime are to be found in one place."""

MOST_FILES = 8
"""In one folder, without `__init__.py`: as many as a reader keeps in mind. A folder that grows beyond it is split by
what its files do."""
MOST_ALIKE = 15
"""In a folder whose files have one form, so that who has read one knows them all."""
ALIKE = {
    "pie_control/calls/allocate",
    "pie_control/calls/fused",
    "pie_control/cli/commands",
    "pie_inference/handlers",
    "pie_inference/layers",
    "pie_inference/models/families",
    "inferlet_sdk/tools/formats",
    "inferlet_sdk/traits",
}
"""Calls, handlers, commands, layers and the like: one module for each, all of one form."""
MOST_GROWN = 12
GROWN = {
    "pie_control",
    "pie_control/calls",
    "pie_control/cli",
    "pie_control/engine",
    "pie_control/host_api",
    "pie_control/http_server",
    "pie_control/inferlets",
    "pie_control/programs",
    "pie_control/resources",
    "pie_control/resources/tables",
    "pie_control/sandbox",
    "pie_control/scheduling",
    "pie_inference/execution",
    "inferlet_sdk",
    "inferlet_sdk/guest",
}
"""Folders that were larger when the limit of 8 came. No other one joins them, and one that shrinks leaves."""


@dataclass(frozen=True)
class Import:
    """One import; `lazy` ones stand in a function. Imports for typing only are imports: they tie modules as well."""

    importer: str
    imported: str
    lazy: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules() -> Mapping[str, Path]:
    return {module_name(path): path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


Importing = ast.Import | ast.ImportFrom | ast.Call


def imported_names(node: Importing, importer: str, is_package: bool) -> Iterator[str]:
    """Modules that a statement or a call imports: `from a import b` is a.b where that is a module, else a."""
    if isinstance(node, ast.Call):
        yield from constant_names(node)
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = importer.split(".") if is_package else importer.split(".")[:-1]
    parent = base[: len(base) - node.level + 1] if node.level else []
    source = ".".join([*parent, *([node.module] if node.module else [])])
    for alias in node.names:
        name = f"{source}.{alias.name}"
        yield name if name in modules() else source


def constant_names(call: ast.Call) -> Iterator[str]:
    """The module that `import_module("a.b")`, `importlib.import_module("a.b")` or `__import__("a.b")` imports."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    first = call.args[0] if call.args else None
    if name in ("import_module", "__import__") and isinstance(first, ast.Constant):
        yield str(first.value)


def walk(node: ast.AST, lazy: bool = False) -> Iterator[tuple[Importing, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Importing):
            yield child, lazy
        yield from walk(child, lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


@functools.cache
def imports() -> tuple[Import, ...]:
    found = []
    for name, path in modules().items():
        for node, lazy in walk(parse(path)):
            is_package = path.name == "__init__.py"
            found += [Import(name, imported, lazy) for imported in imported_names(node, name, is_package)]
    return tuple(found)


def test_the_walk_sees_the_tree() -> None:
    assert Import("pie_control.application.host", "pie_control.host_api", False) in imports()
    assert Import("pie_control.cli.targets", "pie_control.runtime", True) in imports()
    assert {name.partition(".")[0] for name in modules()} == set(PACKAGES)


@pytest.mark.parametrize(
    "call",
    ['import_module("a.b")', 'importlib.import_module("a.b")', 'x = __import__("a.b")', 'f(import_module("a.b").c)'],
)
def test_imports_by_calls_are_seen(call: str) -> None:
    found = [name for node, _ in walk(ast.parse(call)) for name in imported_names(node, "c", False)]
    assert found == ["a.b"]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_flow_one_way(package: str) -> None:
    allowed = MAY_IMPORT[package]
    if package.startswith("pie_control"):
        allowed = (*allowed, *OPEN)
    native = {one for one in modules() if any(is_inside(one, package) for package in BESIDE_SDK)}
    wrong = [
        each
        for each in imports()
        if is_inside(each.importer, package)
        and each.imported.startswith(PACKAGES)
        and not any(is_inside(each.imported, one) for one in allowed)
        and not (each.importer in native and is_inside(each.imported, "inferlet_sdk"))
    ]
    assert wrong == []


def test_what_is_installed_needs_nothing_that_is_not() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    assert set(found) == {f"{package}*" for package in PACKAGES}
    beside = {path.name for path in ROOT.iterdir() if path.is_dir()} - set(PACKAGES)
    assert {"benchmarks", "testing", "tests"} <= beside
    assert [each for each in imports() if each.imported.partition(".")[0] in beside] == []


def test_only_the_edge_knows_the_composition_root() -> None:
    importers = {each.importer for each in imports() if each.imported == "pie_control.runtime"}
    assert importers == {
        "pie_control.authoring.native.server",
        "pie_control.authoring.testing",
        "pie_control.cli.commands.serve",
        "pie_control.cli.targets",
    }


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_import_no_machinery(package: str) -> None:
    for each in imports():
        top = each.imported.partition(".")[0]
        if is_inside(each.importer, package) and top not in PACKAGES:
            assert top in sys.stdlib_module_names | PURE[package], each
            assert top not in FORBIDDEN[package], each


@pytest.mark.parametrize("dependency", HOMES)
def test_heavy_dependencies_have_one_home(dependency: str) -> None:
    importers = {each.importer for each in imports() if is_inside(each.imported, dependency)}
    homes = HOMES[dependency]
    assert {one for one in importers if not any(is_inside(one, home) for home in homes)} == set()
    assert {home for home in homes if not any(is_inside(one, home) for one in importers)} == set(), "remove it"


def test_the_protocol_and_the_control_layer_load_without_torch() -> None:
    code = "import sys, pie_control.runtime, pie_control.cli.main, pie_inference.protocol; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {"pie_control.runtime", "torch"} & set(loaded.split()) == {"pie_control.runtime"}


def test_the_control_process_loads_no_wasmtime() -> None:
    """Hosts link and run what is untrusted; one in the control process is imported when it begins."""
    code = "import sys, pie_control.runtime, pie_control.cli.commands.serve; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    own = {name for name in modules() if is_inside(name, "pie_control.programs") and not is_inside(name, BUNDLED)}
    programs = {name for name in own if ".host" not in name}
    assert programs <= set(loaded.split())
    assert "wasmtime" not in loaded.split()


def test_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for each in imports():
        if not each.lazy and each.imported in graph and each.imported != each.importer:
            graph[each.importer].add(each.imported)
    assert cycles(graph) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_cycles_between_folders(package: str) -> None:
    """So each of them can be read before those that build upon it. Imports in functions count, too."""
    graph: dict[str, set[str]] = {}
    for each in imports():
        importer, imported = folder_of(each.importer), folder_of(each.imported)
        if is_inside(imported, package) and is_inside(importer, package):
            graph.setdefault(importer, set()).update({imported} - {importer})
            graph.setdefault(imported, set())
    assert cycles(graph) == []


def folder_of(module: str) -> str:
    """pie_control.engine of pie_control.engine.loop."""
    return ".".join(module.split(".")[:2])


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """One cycle for each edge that closes one, by depth-first search."""
    found: list[list[str]] = []
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            path.append(name)
            for other in sorted(graph[name]):
                visit(other)
            path.pop()
            done.add(name)

    for name in sorted(graph):
        visit(name)
    return found


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c", "b"]]


def test_folders_stay_small() -> None:
    folders = Counter(path.parent for path in modules().values() if path.name != "__init__.py")
    sizes = {folder.relative_to(ROOT).as_posix(): count for folder, count in folders.items()}
    assert {name for name, size in sizes.items() if size > most_files(name)} == set()
    assert {name for name in GROWN if sizes.get(name, 0) <= MOST_FILES} == set(), "remove it"
    assert sizes.keys() >= ALIKE, "remove it"


def most_files(folder: str) -> int:
    if folder in ALIKE:
        return MOST_ALIKE
    return MOST_GROWN if folder in GROWN else MOST_FILES


def test_files_stay_small() -> None:
    sizes = {name: len(path.read_text("utf-8").splitlines()) for name, path in modules().items()}
    assert {name for name, size in sizes.items() if size > MOST_LINES} == LARGE
