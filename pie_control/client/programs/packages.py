"""Reads a program to be uploaded. A folder becomes a zip archive, the same for the same files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pie_control.errors import BadRequest

SUFFIXES = (".py", ".zip", ".wasm")
ENTRIES = ("main.py", "__main__.py")
MANIFEST = "Cargo.toml"
"""A folder that has it, and no entry in Python, is a program in Rust."""
LEFT_OUT = {"__pycache__", "node_modules", "venv"}
BUILT = ".component"
"""Ends the names of files that `pie build` makes, before the suffix."""
MOST_BYTES = 64 << 20
EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The time that an archive gives to every file, so that its content hash depends on nothing else."""


def is_file(program: str) -> bool:
    """Whether a text means a file or folder, and not the name of a program: it has a slash or the suffix of a program,
    and is there. Raises BadRequest for the text of a program."""
    check_no_source(program)
    return (Path(program).suffix in SUFFIXES or "/" in program) and os.path.exists(program)


def check_no_source(program: str) -> None:
    """Raises BadRequest for the text of a program where its name is wanted."""
    if "\n" in program:
        raise BadRequest("program: a text names a program, a file or a folder; upload a program's own text as bytes")


def read_program(path: Path) -> bytes:
    """The content of a file, or the archive of a folder. Raises BadRequest."""
    return package_of(path) if path.is_dir() else read_file(path)


def name_of(path: Path) -> str:
    """The name that a program gets by its file or folder."""
    return path.resolve().name if path.is_dir() else path.stem.removesuffix(BUILT)


def is_crate(path: Path) -> bool:
    """Whether a path is the folder of a program in Rust, which must be built."""
    return (path / MANIFEST).is_file() and not any((path / name).is_file() for name in ENTRIES)


def entry_of(folder: Path) -> Path:
    """The file of a folder in Python that runs: `main.py` or `__main__.py`. Raises BadRequest if there is none."""
    if is_crate(folder):
        raise BadRequest(
            f"the folder {folder} is a program in Rust, which runs in the sandbox alone: `pie build {folder}` makes a "
            f"component of it, and `pie run {folder}` runs it"
        )
    for name in ENTRIES:
        if (folder / name).is_file():
            return folder / name
    raise BadRequest(f"the folder {folder} is no program: it has no main.py and no __main__.py")


def package_of(folder: Path) -> bytes:
    """The archive of a folder with `main.py` or `__main__.py`: everything in it but hidden files, caches and virtual
    environments. A folder that is a package itself, with `__init__.py`, keeps its name. Raises BadRequest."""
    entry_of(folder)
    import io
    import zipfile  # most programs are one file

    is_package = (folder / "__init__.py").is_file() and (folder / "__main__.py").is_file()
    prefix = f"{folder.resolve().name}/" if is_package else ""
    archive, total = io.BytesIO(), 0
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as content:
        for path in files_of(folder):
            data = read_file(path)
            total += len(data)
            if total > MOST_BYTES:
                raise BadRequest(f"the files in {folder} are more than {MOST_BYTES >> 20} MiB: is it the right folder?")
            entry = zipfile.ZipInfo(prefix + path.relative_to(folder).as_posix(), EARLIEST)
            entry.compress_type = zipfile.ZIP_DEFLATED
            try:
                content.writestr(entry, data)
            except UnicodeEncodeError:
                raise BadRequest(f"the name of the file {str(path)!a} is no text in UTF-8: rename it") from None
    return archive.getvalue()


def files_of(folder: Path) -> Iterator[Path]:
    """The files of a program in a folder, in order: no hidden ones, caches and virtual environments."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in LEFT_OUT or path.suffix == ".pyc":
            continue
        if path.is_dir():
            if not (path / "pyvenv.cfg").is_file() and not path.is_symlink():
                yield from files_of(path)
        elif path.is_file():
            yield path


def read_file(path: Path) -> bytes:
    """Raises BadRequest."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRequest(f"cannot read {path}: {error.strerror}") from None
