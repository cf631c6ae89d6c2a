"""What a program imports that the sandbox lacks, as far as that can be seen before it runs."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Mapping

TOLD = "it has the pure parts of the standard library, inferlet_sdk, and the modules that the program brings"


COMPILED = (
    "numpy",
    "scipy",
    "pandas",
    "torch",
    "tensorflow",
    "jax",
    "sklearn",
    "transformers",
    "PIL",
    "cv2",
    "pydantic",
)
"""Packages that authors try, with parts that are not Python."""
SUBMODULES = {"inferlet_sdk.testing": "that is for tests: `pie test` runs them"}
CLIENTS = ("requests", "httpx", "aiohttp", "urllib3")
"""They open sockets."""


class ImportRefused(ValueError):
    """A program is refused at its upload; the message says why, and what to do."""


class MissingModule(ImportRefused):
    """It imports what does not exist in the sandbox."""


def check_imports(entry: str, sources: Mapping[str, bytes]) -> None:
    """Follows the imports that every run makes, from the module `entry` on; `sources`, in UTF-8, by
    name of module. What stands in a function or a `try` may never run. Raises MissingModule."""
    seen, waiting = {entry}, [entry]
    while waiting:
        name = waiting.pop()
        is_package = any(other.startswith(f"{name}.") for other in sources)
        for line, wanted in _imports(ast.parse(sources[name].decode("utf-8-sig")), name, is_package):
            if wanted in sources:
                if wanted not in seen:
                    seen.add(wanted)
                    waiting.append(wanted)
            elif not _exists(wanted, sources):
                root = wanted.partition(".")[0]
                advice = advice_on_package(root) if wanted == root else SUBMODULES.get(wanted, "is it misspelt?")
                raise MissingModule(f"{name}, line {line}: the sandbox has no module {wanted!r}; {TOLD}; {advice}")


def advice_on_package(package: str) -> str:
    """What to do without a package that the sandbox lacks."""
    if package in COMPILED:
        return f"{package!r} has compiled parts, which it cannot load: do that in a client of the inferlet"
    if package in CLIENTS:
        return "use `http_get` and `http_post` of inferlet_sdk"
    if package in sys.stdlib_module_names:
        return "that part of the standard library needs an operating system: use what it has"
    return f"add a pure-Python wheel of {package!r} to the program"


def _imports(tree: ast.Module, name: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Lines and names of modules that are imported whenever the module is."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, level=0) if module:
                yield node.lineno, module
            case ast.ImportFrom(module=module, level=level):
                package = name.split(".") if is_package else name.split(".")[:-1]
                base = package[: len(package) - level + 1]
                if base:
                    yield node.lineno, ".".join([*base, *([module] if module else [])])
            case ast.ClassDef(body=body):
                waiting = [*body, *waiting]


def _exists(name: str, sources: Mapping[str, bytes]) -> bool:
    """Whether a module is in the sandbox, or a folder of the program."""
    if any(other.startswith(f"{name}.") for other in sources):
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False
