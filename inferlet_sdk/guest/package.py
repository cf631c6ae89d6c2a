"""Programs of several files: a zip archive with `main.py` or `__main__.py`, modules, data files, and wheels.

The archive is read here, in the sandbox, when the program is uploaded. What comes out is marshalled: the code of every
module, with its source for tracebacks, and the data files. A launch loads that, and imports modules from it.

What lies in one folder is taken as if that folder were the archive; if it is a package with `__main__.py`, it runs as
by `python -m`. Wheels, beside the entry or in `wheels/`, are unpacked; they must be pure Python.
"""

from __future__ import annotations

import io
import linecache
import sys
import types
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from inferlet_sdk.guest.data_files import Resources
from inferlet_sdk.guest.imports import Refused, check_imports

MAX_FILES = 4096
MAX_BYTES = 32 << 20
"""Most bytes of all files, unpacked."""
ENTRIES = ("__main__.py", "main.py")
COMPILED = (".so", ".pyd", ".dylib", ".dll")
PURE = "the sandbox runs pure Python only: take a wheel whose name ends with -none-any.whl"


class BadPackage(Refused):
    """The archive cannot be a program; the message says why, and what to do."""


class Module(NamedTuple):
    """A module of a package; `source` is compressed."""

    file: str
    code: types.CodeType | None  # None: a folder without `__init__.py`
    is_package: bool
    source: bytes


class Package(NamedTuple):
    """A compiled package. `entry`: the name of the module that is run as `__main__`."""

    entry: str
    modules: dict[str, Module]
    files: dict[str, bytes]  # data, by path


# ---- at upload -------------------------------------------------------------------------------------------------------


def compile_package(archive: bytes) -> Package:
    """Reads and compiles an archive. Raises BadPackage, SyntaxError."""
    files = _at_root(dict(_read(archive, "the archive")))
    for wheel in [path for path in files if path.endswith(".whl") and path.rpartition("/")[0] in ("", "wheels")]:
        content = _read(files.pop(wheel), wheel)
        files = {**{path: data for path, data in content if ".dist-info/" not in path}, **files}
    _check_size(files)
    entry = _entry(files)
    modules = dict(_modules(files))
    data = {path: content for path, content in files.items() if not path.endswith(".py")}
    sources = {name: _text(files[one.file], one.file) for name, one in modules.items() if one.code is not None}
    check_imports(_name_of(entry), sources)
    return Package(_name_of(entry), modules, data)


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


def _modules(files: Mapping[str, bytes]) -> Iterator[tuple[str, Module]]:
    folders: set[str] = set()
    for path, data in files.items():
        if not path.endswith(".py"):
            continue
        folders.update(str(folder) for folder in PurePosixPath(path).parents if str(folder) != ".")
        code = compile(_text(data, path), path, "exec", dont_inherit=True)
        yield _name_of(path), Module(path, code, path.endswith("__init__.py"), zlib.compress(data))
    for folder in folders:
        if f"{folder}/__init__.py" not in files:
            yield folder.replace("/", "."), Module(folder, None, True, b"")


def _name_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadPackage(f"{path} is not in UTF-8: {error}") from None


# ---- at launch -------------------------------------------------------------------------------------------------------


def begin(package: Package, main: types.ModuleType) -> types.CodeType:
    """Lets modules of a package be imported; the code of its entry, to be run as `main`."""
    loader = Loader(package)
    sys.meta_path.append(loader)
    entry = package.modules[package.entry]
    _show_lines(entry)
    main.__file__ = entry.file
    main.__package__ = package.entry.rpartition(".")[0]
    main.__loader__ = loader  # type: ignore[assignment]  # not of the abstract class, as most loaders
    assert entry.code is not None
    return entry.code


def _show_lines(module: Module) -> None:
    """Tracebacks find the source."""
    linecache.cache[module.file] = (lambda: zlib.decompress(module.source).decode("utf-8-sig"),)


class Loader:
    """Finds and loads the modules of a package, and its data files."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self.files: dict[str, bytes] = package.files

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        module = self._package.modules.get(name)
        if module is None:
            return None
        spec = ModuleSpec(name, self, origin=module.file, is_package=module.is_package)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        found = self._package.modules[module.__name__]
        _show_lines(found)
        if found.code is not None:
            exec(found.code, module.__dict__)

    def get_data(self, path: str) -> bytes:
        """A data file (`pkgutil.get_data`). Raises OSError."""
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(f"the program has no file {path}") from None

    def get_resource_reader(self, name: str) -> Resources:
        """For `importlib.resources`."""
        return Resources(self.files, name.replace(".", "/"))
