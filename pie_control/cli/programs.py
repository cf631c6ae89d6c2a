"""Finds the program that FILE|FOLDER|NAME on the command line means."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from pie_control.client.programs.packages import ENTRIES, SUFFIXES, is_crate, read_program
from pie_control.errors import UnknownName

from .tables import moment

MIN_PREFIX = 8
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


class Found(NamedTuple):
    """A file or folder, or the hash of a program that the server has. `note`: what the user may have meant instead."""

    program: Path | str
    note: str = ""


def find_program(reference: str, known: Sequence[Mapping[str, Any]]) -> Found:
    """A file, a program that the server knows (`known`: all of them, as clients see them), a folder, or an example, in
    this order; a folder with a slash comes first. Raises UnknownName."""
    path = _path(reference)
    if os.path.isfile(path) or (os.path.isdir(path) and "/" in reference):
        return Found(path)
    if path.suffix in SUFFIXES or "/" in reference:
        raise UnknownName(f"there is no file {reference}")
    for program in known:
        if reference in program["names"]:
            return Found(program["program"], _note(reference, program))
    if len(reference) >= MIN_PREFIX and any(program["program"].startswith(reference) for program in known):
        return Found(reference)
    if os.path.isdir(path):
        return Found(path)
    example = EXAMPLES / reference / f"{reference}.py"
    if os.path.isfile(example):
        return Found(example)
    examples = sorted(path.stem for path in EXAMPLES.glob("*/*.py") if path.stem == path.parent.name)
    names = [*(name for each in known for name in each["names"]), *examples, *_programs_here()]
    close = difflib.get_close_matches(reference, names, 1)
    advice = f"do you mean {close[0]}?" if close else f"examples are: {', '.join(examples)}"
    raise UnknownName(f"{reference!r} is not a file, a program of the server or an example; {advice}")


def _programs_here() -> Iterator[str]:
    """Files and folders of this folder that are programs."""
    with os.scandir() as found:
        for one in found:
            if Path(one.name).suffix in SUFFIXES or any(Path(one.name, entry).is_file() for entry in ENTRIES):
                yield one.name


def _path(reference: str) -> Path:
    """A path that may be none: `os.path` answers questions about it, where `Path` raises errors."""
    return Path(os.path.expanduser(reference))


def built(path: Path) -> Path:
    """The file or folder; of a program in Rust its component, which is built first. Raises BadProgram, BadRequest."""
    if not is_crate(path):
        return path
    from pie_control.authoring.build import build

    return build(path)


def _note(name: str, program: Mapping[str, Any]) -> str:
    """What has the same name, where that is another program."""
    stored = f"{name} is the program that was uploaded on {moment(program['uploaded'])}"
    beside = [Path(name + suffix) for suffix in SUFFIXES if Path(name + suffix).is_file()]
    beside += [Path(name)] if any(Path(name, entry).is_file() for entry in ENTRIES) else []
    for path in beside:
        if _hash(path) != program["program"]:
            here = f"{path}/" if path.is_dir() else str(path)
            return f"{stored}; {here} differs from it: `pie run {here}` runs that, `pie upload {here}` makes it {name}"
    example = EXAMPLES / name / f"{name}.py"
    if not beside and example.is_file() and _hash(example) != program["program"]:
        return f"{stored}, not the example: `pie delete {name}` brings that back"
    return ""


def _hash(path: Path) -> str:
    return sha256(read_program(path)).hexdigest()
