"""Compiles the kernels with the system's C++ compiler and keeps the result in a cache folder (`options/compiling.py`).
Imports no torch.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path

from ..errors import KernelsUnavailable
from ..options.cache_files import NotPrivate, find_sealed, folder_to_compile_in
from ..options.compiling import SUFFIX, CannotCompile, compile_library, find_compiler, fingerprint, telling_time

SOURCES = Path(__file__).parent
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=off", "-fPIC", "-pthread")
"""Without contraction: the compiler would fuse products and sums in one kernel and not in another (`vectors.h`)."""
AVX2 = frozenset({"avx2", "fma", "f16c"})
"""The least that an x86 processor must have."""
TILES = frozenset({"amx_tile", "amx_bf16"})
WITHOUT_TILES = ("-mno-amx-bf16", "-mno-amx-tile")


def build(cache_dir: Path, compilers: tuple[str, ...] = COMPILERS, max_isa: str = "auto") -> Path:
    """The compiled library; `max_isa` as in `WorkerOptions`. Raises KernelsUnavailable if this machine cannot compile
    or run it, or if others can write into the cache folder."""
    flags = (*FLAGS, *_flags_of_cpu(max_isa))
    try:
        compiler = find_compiler("C++", compilers)
        folder = folder_to_compile_in(cache_dir / "kernels")
        stem = _fingerprint(compiler, flags)
        sources = sorted(SOURCES.glob("*.cpp"))
        if (found := find_sealed(folder, stem, SUFFIX)) is not None:
            return found
        with telling_time("compiling kernels for this CPU"):
            return compile_library(compiler, flags, sources, folder, stem)
    except (CannotCompile, NotPrivate) as error:
        raise KernelsUnavailable(str(error)) from error


def _flags_of_cpu(max_isa: str) -> tuple[str, ...]:
    if platform.machine() in ("aarch64", "arm64"):
        return ("-mcpu=native",)
    if missing := AVX2 - cpu_flags():
        raise KernelsUnavailable(f"this CPU has no {', '.join(sorted(missing))}")
    if max_isa == "avx2":
        return ("-mavx2", "-mfma", "-mf16c")
    return ("-march=native", *(WITHOUT_TILES if max_isa == "avx512" and has_tiles() else ()))


def has_tiles() -> bool:
    """Whether the CPU has tiles of bfloat16 numbers."""
    return cpu_flags() >= TILES


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Names of the CPU's instruction sets, as Linux lists them; empty on other systems."""
    return frozenset(_first_in_cpuinfo("flags", "Features").split())


def cpu_name() -> str:
    """The CPU's name, as Linux lists it, or what the system says of it."""
    return _first_in_cpuinfo("model name", "CPU part") or platform.processor() or platform.machine()


def _first_in_cpuinfo(*names: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in fields if name.strip() in names), "")


def _fingerprint(compiler: str, flags: tuple[str, ...]) -> str:
    sources = sorted(SOURCES.glob("*.cpp")) + sorted(SOURCES.glob("*.h"))
    return fingerprint(compiler, flags, sources, sorted(cpu_flags()))
