"""Compiles the sources beside this file with the system's C compiler, and keeps the library in a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from pie_inference.options.cache_files import NotPrivate, find_sealed, folder_to_compile_in
from pie_inference.options.compiling import SUFFIX, CannotCompile, compile_library, find_compiler, fingerprint

SOURCES = Path(__file__).parent
COMPILERS = ("gcc", "clang", "cc")
FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-Wl,-Bsymbolic")


def build(folder: Path, compilers: tuple[str, ...] = COMPILERS) -> Path:
    """The compiled library. Raises CannotCompile, also if others can write into the folder."""
    if sys.platform != "linux":
        raise CannotCompile(f"it is not made for {sys.platform}")
    try:
        folder = folder_to_compile_in(folder)
    except NotPrivate as error:
        raise CannotCompile(str(error)) from error
    sources = sorted(SOURCES.glob("*.c"))
    stem = fingerprint(None, FLAGS, [*sources, *sorted(SOURCES.glob("*.h"))])
    found = find_sealed(folder, stem, SUFFIX)
    return found or compile_library(find_compiler("C", compilers), FLAGS, sources, folder, stem)
