"""Compiles the kernels with the system's C++ compiler and keeps the result in a cache folder.

The name of the library begins with a hash of everything that it depends on, so it is never stale, and ends with the
hash of its content (`options/cache_files.py`). It is compiled under another name and then moved into place, so several
processes may compile at once. Imports no torch.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ..errors import KernelsUnavailable
from ..options.cache_files import NotPrivate, find_sealed, private_folder, seal

SOURCES = Path(__file__).parent
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC")
NEEDED_FLAGS = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"})
SUFFIX = ".so"
TIMEOUT = 300.0  # seconds; compiling usually takes a few


def build(cache_dir: Path, compilers: tuple[str, ...] = COMPILERS) -> Path:
    """The compiled library. Raises KernelsUnavailable if this machine cannot compile or run it, or if others can write
    into the cache folder."""
    if missing := NEEDED_FLAGS - cpu_flags():
        raise KernelsUnavailable(f"this CPU has no {', '.join(sorted(missing))}")
    compiler = _find(compilers)
    try:
        folder = private_folder(cache_dir / "kernels")
    except NotPrivate as error:
        raise KernelsUnavailable(str(error)) from None
    fingerprint = _fingerprint(compiler)
    return find_sealed(folder, fingerprint, SUFFIX) or _compile(compiler, folder, fingerprint)


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Names of the CPU's instruction sets, as Linux lists them; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = (line.partition(":") for line in text.splitlines())
    return next((frozenset(value.split()) for key, _, value in lines if key.strip() == "flags"), frozenset())


def _find(compilers: tuple[str, ...]) -> str:
    found = next((path for name in compilers if (path := shutil.which(name))), None)
    if found is None:
        raise KernelsUnavailable(f"there is no C++ compiler here; install one of {', '.join(compilers)}")
    return found


def _fingerprint(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False, timeout=TIMEOUT).stdout
    parts = [compiler.encode(), version, *map(str.encode, FLAGS), platform.machine().encode()]
    parts += [name.encode() for name in sorted(cpu_flags())]
    parts += [path.read_bytes() for path in sorted(SOURCES.glob("*.cpp")) + sorted(SOURCES.glob("*.h"))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _compile(compiler: str, folder: Path, fingerprint: str) -> Path:
    try:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = list(pool.map(partial(_compile_one, compiler, Path(scratch)), sorted(SOURCES.glob("*.cpp"))))
            unfinished = Path(scratch) / f"kernels{SUFFIX}"
            _run([compiler, "-shared", "-o", str(unfinished), *objects])
            return seal(unfinished, folder, fingerprint, SUFFIX)
    except OSError as error:
        reason = f"{folder} cannot be written: {error.strerror}; choose another --cache-dir"
        raise KernelsUnavailable(reason) from error


def _compile_one(compiler: str, folder: Path, source: Path) -> str:
    """Compiles one source; returns the path of the object file."""
    made = str(folder / f"{source.stem}.o")
    _run([compiler, *FLAGS, "-c", "-o", made, str(source)])
    return made


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise KernelsUnavailable(f"{command[0]} did not end within {TIMEOUT:.0f} seconds") from None
    if done.returncode:
        raise KernelsUnavailable(f"{command[0]} failed: {_first_error(done.stderr)}")


def _first_error(stderr: str) -> str:
    lines = stderr.strip().splitlines()
    return next((line for line in lines if "error" in line), lines[-1] if lines else "it printed nothing")
