"""Modules of the standard library that programs may import. The build of the guest component loads them.

The sandbox has no files, so a module outside of the snapshot does not exist there.
"""

from __future__ import annotations

from importlib import import_module

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


def load() -> None:
    """Imports all modules."""
    for name in MODULES:
        import_module(name)
