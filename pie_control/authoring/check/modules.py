"""What a program imports that the sandbox lacks."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import inferlet_sdk

LIST = (
    "import sys; sys.path.insert(0, sys.argv[1]); from inferlet_sdk.guest import standard_library; "
    "standard_library.load(); import inferlet_sdk.guest.program; print(*sys.modules)"
)


@functools.cache
def of_the_sandbox() -> frozenset[str]:
    """Modules that the guest's build loads: an interpreter with nothing else loads the same."""
    folder = str(Path(inferlet_sdk.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", LIST, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return frozenset(done.stdout.split()) | frozenset(sys.builtin_module_names)


def is_there(module: str, own: Collection[str]) -> bool:
    """Whether a program with modules `own` can import a module."""
    if module in own or any(one.startswith(f"{module}.") for one in own) or module.startswith("_"):
        return True
    return module.partition(".")[0] == inferlet_sdk.__name__ or module in of_the_sandbox()


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Absolute imports, but those in a `try` or under `if TYPE_CHECKING`, which may be meant to fail."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Try | ast.If):
            continue
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node, node.module
        else:
            yield from imports(node)
