"""Data files of a program of several files: for `importlib.resources`, and by `program_files`."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable, TraversableResources
from pathlib import PurePosixPath
from typing import Any


class Resources(TraversableResources):
    def __init__(self, files: Mapping[str, bytes], folder: str) -> None:
        self._root = DataFile(files, folder)

    def files(self) -> DataFile:
        return self._root


class DataFile(Traversable):
    """A data file of the program, or a folder of some."""

    def __init__(self, files: Mapping[str, bytes], path: str) -> None:
        self._files = files
        self._path = path

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    def is_file(self) -> bool:
        return self._path in self._files

    def is_dir(self) -> bool:
        return any(path.startswith(self._folder) for path in self._files)

    @property
    def _folder(self) -> str:
        return f"{self._path}/" if self._path else ""

    def iterdir(self) -> Iterator[DataFile]:
        inside = (path[len(self._folder) :] for path in self._files if path.startswith(self._folder))
        for name in sorted({path.partition("/")[0] for path in inside}):
            yield DataFile(self._files, self._folder + name)

    def joinpath(self, *descendants: Any) -> DataFile:
        parts = "/".join(str(one) for one in descendants)
        return DataFile(self._files, str(PurePosixPath(self._folder + parts)))

    __truediv__ = joinpath

    def read_bytes(self) -> bytes:
        try:
            return self._files[self._path]
        except KeyError:
            raise FileNotFoundError(f"the program has no file {self._path}") from None

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def open(self, mode: str = "r", *_: Any, encoding: str | None = None, **__: Any) -> Any:
        data = self.read_bytes()
        return io.BytesIO(data) if "b" in mode else io.StringIO(data.decode(encoding or "utf-8"))


def program_files() -> DataFile:
    """The data files that a program of several files has brought; one of a single file has none:
    `program_files().joinpath("prompts/first.txt").read_text()`."""
    loader = getattr(sys.modules["__main__"], "__loader__", None)
    return DataFile(getattr(loader, "files", {}), "")
