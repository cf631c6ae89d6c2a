"""Compiling C and C++ sources of ours on the machine that runs them, into sealed files (`cache_files`).

The name of a library begins with a hash of everything that it depends on, so it is never stale. It is compiled under
another name and then moved into place. One process compiles while others that want a library of the same folder wait.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from .cache_files import TURN_SECONDS, find_sealed, queued, seal

SUFFIX = ".so"
TIMEOUT = 300.0
"""Seconds; compiling usually takes a few."""
SECONDS_BETWEEN_LINES = 10.0


class CannotCompile(Exception):
    """There is no compiler, or it failed. The message says which and why."""


@contextmanager
def telling_time(what: str, more: Callable[[], str] = str) -> Iterator[None]:
    """While something is done that says nothing, tells on stderr `what`, `more` and how long that takes already: a
    worker that is silent for minutes is given up. The lines are like those of `LoadProgress`; there are none if it is
    quick."""
    started, ended = time.monotonic(), threading.Event()

    def tell(end: str) -> None:
        print(f"{what}: {more()}{time.monotonic() - started:.0f} s", end=end, file=sys.stderr, flush=True)

    def tell_on() -> None:
        while not ended.wait(SECONDS_BETWEEN_LINES):
            tell("\r")

    telling = threading.Thread(target=tell_on, name="telling", daemon=True)
    telling.start()
    try:
        yield
    finally:
        ended.set()
        telling.join()
        if time.monotonic() - started >= SECONDS_BETWEEN_LINES:
            tell("\n")


def find_compiler(language: str, names: Sequence[str]) -> str:
    """The first compiler of `names` that is installed."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise CannotCompile(f"there is no {language} compiler here; install one of {', '.join(names)}")
    return found


def fingerprint(compiler: str | None, flags: Sequence[str], sources: Iterable[Path], more: Iterable[str] = ()) -> str:
    """A hash of all that a library depends on: compiler and its version (None: whatever compiled it serves), flags,
    machine, `more`, and the content of the sources."""
    parts = [*_version(compiler), *map(str.encode, flags), platform.machine().encode(), *map(str.encode, more)]
    parts += [path.read_bytes() for path in sources]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _version(compiler: str | None) -> list[bytes]:
    if compiler is None:
        return []
    done = subprocess.run([compiler, "--version"], capture_output=True, check=False, timeout=TIMEOUT)
    return [compiler.encode(), done.stdout]


def compile_library(compiler: str, flags: Sequence[str], sources: Iterable[Path], folder: Path, stem: str) -> Path:
    """The sealed library with this stem, made from sources in a private folder, if no other process has made it before
    its turn. Raises CannotCompile."""
    try:
        with queued(folder) as is_my_turn:
            while not is_my_turn():
                time.sleep(TURN_SECONDS)
            return find_sealed(folder, stem, SUFFIX) or _compile_all(compiler, flags, sources, folder, stem)
    except OSError as error:
        raise CannotCompile(f"{folder} cannot be written: {error.strerror}; choose another --cache-dir") from error


def _compile_all(compiler: str, flags: Sequence[str], sources: Iterable[Path], folder: Path, stem: str) -> Path:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(partial(_compile_one, compiler, flags, Path(scratch)), sources))
        unfinished = Path(scratch) / f"library{SUFFIX}"
        _run([compiler, "-shared", *_for_linker(flags), "-o", str(unfinished), *objects])
        return seal(unfinished, folder, stem, SUFFIX)


def _for_linker(flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if flag.startswith(("-Wl,", "-pthread"))]


def _compile_one(compiler: str, flags: Sequence[str], folder: Path, source: Path) -> str:
    """Compiles one source; returns the path of the object file."""
    made = str(folder / f"{source.stem}.o")
    _run([compiler, *(flag for flag in flags if not flag.startswith("-Wl,")), "-c", "-o", made, str(source)])
    return made


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise CannotCompile(f"{command[0]} did not end within {TIMEOUT:.0f} seconds") from None
    if done.returncode:
        raise CannotCompile(f"{command[0]} failed: {_first_error(done.stderr)}")


def _first_error(stderr: str) -> str:
    lines = stderr.strip().splitlines()
    return next((line for line in lines if "error" in line), lines[-1] if lines else "it printed nothing")
