"""What a launch reads of its compiled program: modules when they are imported, and data files."""

from __future__ import annotations

import base64
import linecache
import marshal
import re
import sys
import types
import zlib
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from typing import Any

from inferlet_sdk import bindings
from inferlet_sdk.errors import call
from inferlet_sdk.guest.packages.compiled import PIECE, SIZE, Module, Part
from inferlet_sdk.guest.packages.data_files import DataFile, Resources


class Compiled:
    """A compiled program, of whose text the host has given the beginning."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._begin = SIZE + int(text[:SIZE])
        self.entry, modules, self._files = marshal.loads(self._read(SIZE, self._begin - SIZE))
        self.modules = {name: Module(*one) for name, one in modules.items()}
        self.files = Files(self, self._files)

    def part(self, part: Part) -> bytes:
        begin, length = part
        return self._read(self._begin + begin, length)

    def _read(self, begin: int, length: int) -> bytes:
        text = self._text[begin : begin + length]
        if len(text) == length:
            return base64.b64decode(text)
        data = bytearray()
        for place in range(begin, begin + length, PIECE):
            data += base64.b64decode(call(bindings.guest_source.read, place, min(PIECE, begin + length - place)))
        return bytes(data)

    def source(self, module: Module) -> str:
        return "" if module.source is None else zlib.decompress(self.part(module.source)).decode("utf-8-sig")


class Files(Mapping[str, bytes]):
    """Data files by path. Each is read when it is asked for, and not kept."""

    def __init__(self, compiled: Compiled, parts: Mapping[str, Part]) -> None:
        self._compiled = compiled
        self._parts = parts

    def __getitem__(self, path: str) -> bytes:
        return self._compiled.part(self._parts[path])

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, path: object) -> bool:
        return path in self._parts


def begin(compiled: Compiled, main: types.ModuleType) -> types.CodeType:
    """Lets the modules of a program be imported; the code of its entry, to be run as `main`."""
    loader = Loader(compiled)
    if len(compiled.modules) + len(compiled.files) > 1:  # before the library, as elsewhere
        sys.meta_path.insert(-1, loader)
    entry = compiled.modules[compiled.entry]
    main.__file__ = entry.file
    main.__package__ = compiled.entry.rpartition(".")[0]
    main.__loader__ = loader  # type: ignore[assignment]  # not of the abstract class, as most loaders
    code = loader.code(entry)
    assert code is not None
    return code


class Loader:
    """Finds and loads the modules of a program, and its data files."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self.files: Mapping[str, bytes] = compiled.files

    def code(self, module: Module) -> types.CodeType | None:
        """The code of a module, whose source tracebacks find from now on."""
        linecache.cache[module.file] = (lambda: self._compiled.source(module),)
        return None if module.code is None else marshal.loads(self._compiled.part(module.code))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        module = self._compiled.modules.get(name)
        if module is None:
            return None
        spec = ModuleSpec(name, self, origin=module.file, is_package=module.is_package)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        code = self.code(self._compiled.modules[module.__name__])
        if code is not None:
            exec(code, module.__dict__)

    def get_source(self, name: str) -> str:
        """For `inspect`. Raises ImportError."""
        if name not in self._compiled.modules:
            raise ImportError(f"the program has no module {name!r}", name=name)
        return self._compiled.source(self._compiled.modules[name])

    def get_data(self, path: str) -> bytes:
        """A data file (`pkgutil.get_data`). Raises OSError."""
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(f"the program has no file {path}") from None

    def get_resource_reader(self, name: str) -> Resources:
        """For `importlib.resources`."""
        return Resources(self.files, name.replace(".", "/"))

    def find_distributions(self, context: Any) -> Iterator[Any]:
        """The wheels of the program, for `importlib.metadata`, which is imported already when it asks."""
        from importlib.metadata import Distribution

        files = self.files

        class Wheel(Distribution):
            def __init__(self, folder: str) -> None:
                self._folder = folder

            def read_text(self, filename: str) -> str | None:
                path = f"{self._folder}/{filename}"
                return files[path].decode() if path in files else None

            def locate_file(self, path: Any) -> Any:
                return DataFile(files, str(path))

        wanted = context.name and _plain(context.name)
        for path in files:
            folder, _, file = path.rpartition(".dist-info/")
            if file == "METADATA" and wanted in (None, _plain(folder.rpartition("-")[0])):
                yield Wheel(f"{folder}.dist-info")


def _plain(name: str) -> str:
    """The name of a wheel, as names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
