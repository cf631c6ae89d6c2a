"""Finds the program that FILE|FOLDER|NAME on the command line means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pie_control.errors import UnknownName

from .server_options import examples_folder

MIN_PREFIX = 8


def find_program(reference: str, known: Sequence[tuple[str, str]]) -> Path | str:
    """A file, a program that the server knows (`known`: hash and name of each), a folder, or a bundled example, in this
    order; a folder with a slash comes first."""
    path = Path(reference).expanduser()
    if path.is_file() or (path.is_dir() and "/" in reference):
        return path
    if path.suffix in (".py", ".zip", ".wasm") or "/" in reference:
        raise UnknownName(f"there is no file {reference}")
    if any(reference == name or _is_prefix(reference, hash) for hash, name in known):
        return reference
    if path.is_dir():
        return path
    example = examples_folder() / reference / f"{reference}.py"
    if example.is_file():
        return example
    raise UnknownName(f"{reference!r} is not a file, a program of the server or an example{_examples()}")


def _is_prefix(reference: str, hash: str) -> bool:
    return len(reference) >= MIN_PREFIX and hash.startswith(reference)


def _examples() -> str:
    names = sorted(path.stem for path in examples_folder().glob("*/*.py") if path.stem == path.parent.name)
    return f" (examples are: {', '.join(names)})" if names else ""
