"""The standard library of the sandbox, which has no files: all of it lies in the snapshot from which guests begin.

The build of the guest component imports MODULES, so they cost a program nothing. Of the other modules it keeps the
compiled code, and a program that imports one loads it then: an instance shares this code with all others until it reads
it. Only LACKING is not there.
"""

from __future__ import annotations

import json
import marshal
import sys
import zlib
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import Any

from inferlet_sdk.guest import stand_ins

MODULES = [
    "abc",
    "array",
    "asyncio",
    "base64",
    "binascii",
    "bisect",
    "calendar",
    "cmath",
    "collections",
    "collections.abc",
    "colorsys",
    "contextlib",
    "contextvars",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "encodings.ascii",
    "encodings.cp437",
    "encodings.latin_1",
    "encodings.utf_16",
    "encodings.utf_8_sig",
    "enum",
    "fractions",
    "functools",
    "gc",
    "hashlib",
    "heapq",
    "hmac",
    "html",
    "importlib.abc",
    "importlib.machinery",
    "importlib.resources",
    "importlib.resources._adapters",
    "importlib.util",
    "inspect",
    "io",
    "itertools",
    "json",
    "keyword",
    "linecache",
    "logging",
    "marshal",
    "math",
    "numbers",
    "operator",
    "pprint",
    "pkgutil",
    "queue",
    "random",
    "re",
    "secrets",
    "statistics",
    "string",
    "struct",
    "sys",
    "textwrap",
    "time",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "urllib.parse",
    "uuid",
    "warnings",
    "weakref",
    "zipfile",
    "zlib",
]
"""What the snapshot holds imported."""

LACKING = {
    *(
        "_ios_support",
        "antigravity",
        "compression.zstd",
        "concurrent.interpreters",
        "curses",
        "ensurepip",
        "fcntl",
        "grp",
    ),
    *(
        "idlelib",
        "mmap",
        "msvcrt",
        "nt",
        "pty",
        "pwd",
        "pydoc_data",
        "readline",
        "resource",
        "ssl",
        "syslog",
        "termios",
    ),
    *("test", "this", "tkinter", "tty", "turtle", "turtledemo", "venv", "winreg", "winsound"),
}
"""These modules and what lies in them are missing: they need compiled parts or a terminal, or are of no use here."""


def lacks(name: str) -> bool:
    """Whether a module of the standard library is LACKING, or lies in one that is."""
    return any(name == one or name.startswith(f"{one}.") for one in LACKING)


def load() -> None:
    """Imports MODULES."""
    for name in MODULES:
        import_module(name)


class KeptModules:
    """A finder and loader of modules whose compiled code is in memory, compressed."""

    def __init__(self, root: Path) -> None:
        self._kept = {name: (str(path), _code(path)) for name, path in _files(root) if name not in sys.modules}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._kept:
            return None
        file, _ = self._kept[name]
        spec = ModuleSpec(name, self, origin=file, is_package=file.endswith("__init__.py"))  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        _, code = self._kept[module.__name__]
        exec(marshal.loads(zlib.decompress(code)), module.__dict__)


def keep() -> None:
    """From now on modules that are not imported yet can be, without files."""
    stand_ins.install()
    sys.meta_path.append(KeptModules(Path(json.__file__).parents[1]))


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if all(part.replace("-", "_").isidentifier() for part in parts) and not lacks(name):
            yield name, path


def _code(path: Path) -> bytes:
    """The compressed code of a module: what its `.pyc` file has behind the header, where there is one."""
    compiled = Path(cache_from_source(str(path)))
    if compiled.exists():
        return zlib.compress(compiled.read_bytes()[16:], 9)
    return zlib.compress(marshal.dumps(SourceFileLoader("", str(path)).get_code("")), 9)
