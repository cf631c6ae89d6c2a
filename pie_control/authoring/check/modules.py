"""What a program imports that the sandbox lacks."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from importlib.util import find_spec

import inferlet_sdk
from inferlet_sdk.guest.packages.imports import advice_on_package
from inferlet_sdk.guest.standard_library import lacks

GUEST = (3, 14)
"""Version of the sandbox's Python."""
NEWER = {"annotationlib", "compression"}
"""Modules that older versions lack."""
# fmt: off
REMOVED = frozenset((
    "aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "crypt", "distutils", "imghdr", "imp",
    "lib2to3", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "smtpd", "sndhdr", "spwd", "sunau",
    "telnetlib", "uu", "xdrlib",
))
# fmt: on
"""Modules that older versions have."""


def is_there(module: str, own: Collection[str]) -> bool:
    """Whether a program with modules `own` can import a module."""
    if module in own or any(one.startswith(f"{module}.") for one in own) or module.startswith("_"):
        return True
    top = module.partition(".")[0]
    if top in REMOVED:
        return False
    return top in (inferlet_sdk.__name__, *NEWER) or (
        top in sys.stdlib_module_names and not lacks(module) and (sys.version_info < GUEST or _is_found(module))
    )


def advice_on(module: str) -> str:
    """What to do without a module that is not there."""
    top = module.partition(".")[0]
    if top in REMOVED:
        return f"Python {GUEST[0]}.{GUEST[1]}, which runs there, has it no more: use something else"
    return advice_on_package(top)


def _is_found(module: str) -> bool:
    """Whether this Python has a module; packages around it are imported, of the standard library only."""
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


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
