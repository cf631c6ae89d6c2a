"""Compiles the kernels with the system's C++ compiler and keeps the result in a cache folder (`options/compiling.py`).
Imports no torch.
"""

from __future__ import annotations

import functools
from pathlib import Path

from ..errors import KernelsUnavailable
from ..options.cache_files import NotPrivate, find_sealed, private_folder
from ..options.compiling import SUFFIX, CannotCompile, compile_library, find_compiler, fingerprint

SOURCES = Path(__file__).parent
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC")
NEEDED_FLAGS = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"})


def build(cache_dir: Path, compilers: tuple[str, ...] = COMPILERS) -> Path:
    """The compiled library. Raises KernelsUnavailable if this machine cannot compile or run it, or if others can write
    into the cache folder."""
    if missing := NEEDED_FLAGS - cpu_flags():
        raise KernelsUnavailable(f"this CPU has no {', '.join(sorted(missing))}")
    try:
        compiler = find_compiler("C++", compilers)
        folder = private_folder(cache_dir / "kernels")
        stem = _fingerprint(compiler)
        sources = sorted(SOURCES.glob("*.cpp"))
        return find_sealed(folder, stem, SUFFIX) or compile_library(compiler, FLAGS, sources, folder, stem)
    except (CannotCompile, NotPrivate) as error:
        raise KernelsUnavailable(str(error)) from error


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Names of the CPU's instruction sets, as Linux lists them; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = (line.partition(":") for line in text.splitlines())
    return next((frozenset(value.split()) for key, _, value in lines if key.strip() == "flags"), frozenset())


def _fingerprint(compiler: str) -> str:
    sources = sorted(SOURCES.glob("*.cpp")) + sorted(SOURCES.glob("*.h"))
    return fingerprint(compiler, FLAGS, sources, sorted(cpu_flags()))
