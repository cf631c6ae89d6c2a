"""Programs of several files: a zip archive with `main.py` or `__main__.py`, modules, data files, and wheels.

The archive is read here, in the sandbox, when the program is uploaded; `compiled` makes of it what a launch loads.

What lies in one folder is taken as if that folder were the archive; if it is a package with `__main__.py`, it runs as
by `python -m`. Wheels, beside the entry or in `wheels/`, are unpacked; they must be pure Python. Of what describes a
wheel, its name, version and entry points stay, for `importlib.metadata`.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from inferlet_sdk.guest.packages.imports import ImportRefused

MAX_FILES = 4096
MAX_BYTES = 32 << 20
"""Most bytes of all files, unpacked."""
ENTRIES = ("__main__.py", "main.py")
COMPILED = (".so", ".pyd", ".dylib", ".dll")
DESCRIPTIONS = (".dist-info/METADATA", ".dist-info/entry_points.txt", ".dist-info/top_level.txt")
PURE = "the sandbox runs pure Python only: take a wheel whose name ends with -none-any.whl"


class BadPackage(ImportRefused):
    """The archive cannot be a program; the message says why, and what to do."""


class SourceModule(NamedTuple):
    """A module of a package, in UTF-8."""

    file: str
    is_package: bool
    source: bytes | None  # None: a folder without `__init__.py`


class Package(NamedTuple):
    """What is in an archive. `entry`: the name of the module that is run as `__main__`."""

    entry: str
    modules: dict[str, SourceModule]
    files: dict[str, bytes]  # data, by path


def read_package(archive: bytes) -> Package:
    """Raises BadPackage."""
    files = _at_root(dict(_read(archive, "the archive")))
    for wheel in [path for path in files if path.endswith(".whl") and path.rpartition("/")[0] in ("", "wheels")]:
        content = _read(files.pop(wheel), wheel)
        files = {**{path: data for path, data in content if _is_wanted(path)}, **files}
    _check_size(files)
    entry = _entry(files)
    modules = dict(_modules(files))
    return Package(_name_of(entry), modules, {path: data for path, data in files.items() if not path.endswith(".py")})


def _is_wanted(path: str) -> bool:
    """Whether a file of a wheel is of use at a launch."""
    return ".dist-info/" not in path or path.endswith(DESCRIPTIONS)


def _read(archive: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    total = 0
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as content:
            entries = [entry for entry in content.infolist() if not entry.is_dir()]
            if len(entries) > MAX_FILES:
                raise BadPackage(f"{name} has {len(entries)} files, more than {MAX_FILES}")
            for entry in entries:
                total += entry.file_size
                if total > MAX_BYTES:
                    raise BadPackage(f"{name} has more than {MAX_BYTES >> 20} MiB, unpacked")
                yield _checked(entry.filename, name), content.read(entry)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError, OSError) as error:
        raise BadPackage(f"{name} is no zip archive that can be read: {error}") from None


def _checked(path: str, archive: str) -> str:
    if path.startswith("/") or "\\" in path or ":" in path or ".." in PurePosixPath(path).parts:
        raise BadPackage(f"{archive} has a file that would lie elsewhere: {path}")
    if path.endswith(COMPILED):
        raise BadPackage(f"{archive} has compiled code ({path}), which cannot run here; {PURE}")
    return path


def _check_size(files: Mapping[str, bytes]) -> None:
    if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_BYTES:
        raise BadPackage(f"with its wheels, the archive has more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB")


def _at_root(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files, without a folder that all of them lie in, unless it is a package that can be run."""
    tops = {path.partition("/")[0] for path in files}
    if len(tops) != 1 or any("/" not in path for path in files):
        return files
    (top,) = tops
    if f"{top}/__init__.py" in files and f"{top}/__main__.py" in files:
        return files
    return {path[len(top) + 1 :]: data for path, data in files.items()}


def _entry(files: Mapping[str, bytes]) -> str:
    found = [name for name in ENTRIES if name in files]
    found += [path for path in files if path.count("/") == 1 and path.endswith("/__main__.py")]
    if not found:
        raise BadPackage("there is no main.py and no __main__.py at the top: one of them must be there, to be run")
    return found[0]


def _modules(files: Mapping[str, bytes]) -> Iterator[tuple[str, SourceModule]]:
    folders: set[str] = set()
    for path, data in files.items():
        if not path.endswith(".py"):
            continue
        folders.update(str(folder) for folder in PurePosixPath(path).parents if str(folder) != ".")
        yield _name_of(path), SourceModule(path, path.endswith("__init__.py"), data)
    for folder in folders:
        if f"{folder}/__init__.py" not in files:
            yield folder.replace("/", "."), SourceModule(folder, True, None)


def _name_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
