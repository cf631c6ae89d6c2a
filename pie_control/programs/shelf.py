"""What one tenant keeps: programs by hash, and its names for them. Pure.

A tenant sees its own programs only, so nobody's upload changes what a reference of another tenant means. Within a
tenant a reference means one thing: a whole hash is that program; a name never looks like a hash or the beginning of
one; and a beginning must be unique.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..errors import BadRequest, UnknownName

MIN_PREFIX = 8
"""Characters of a hash by which a program can be named."""
MOST_NAME = 128
LOOKS_LIKE_A_HASH = re.compile(rf"[0-9a-fA-F]{{{MIN_PREFIX},}}")


def check_label(label: str) -> None:
    """Raises BadRequest for what cannot be shown as the name or the file of a program; an empty one means: none."""
    if len(label) > MOST_NAME or not label.isprintable():
        raise BadRequest(f"the name of a program has at most {MOST_NAME} printable characters: choose another name")


def check_name(name: str) -> None:
    """Raises BadRequest for what cannot be the name of a program; an empty one means: none."""
    check_label(name)
    if LOOKS_LIKE_A_HASH.fullmatch(name):
        raise BadRequest(
            f"the name {name!r} looks like the hash of a program: choose one with other characters than 0-9 and a-f, "
            f"or with fewer than {MIN_PREFIX}"
        )


@dataclass
class Kept:
    """A program as its owner keeps it. `names`: oldest first. `file`: what the file was called from which it came
    last; it stands for nothing. `uploaded`: when it came, or got a name, last, in seconds since the epoch."""

    names: list[str] = field(default_factory=list)
    file: str = ""
    uploaded: float = 0.0


class Shelf:
    """The programs and names of a tenant."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._programs: dict[str, str] = {}  # by name

    def __contains__(self, program: str) -> bool:
        return program in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, program: str) -> Kept:
        return self._kept[program]

    @property
    def programs(self) -> tuple[str, ...]:
        """Hashes, in the order in which they came."""
        return tuple(self._kept)

    @property
    def names(self) -> int:
        """How many names there are."""
        return len(self._programs)

    def named(self, name: str) -> str | None:
        """The program with this name."""
        return self._programs.get(name)

    def put(self, program: str, name: str = "", file: str = "", uploaded: float = 0.0) -> None:
        """Adds a program, or a name to it. The name leaves the program that had it before. `file`, `uploaded`: see
        `Kept`."""
        kept = self._kept.setdefault(program, Kept())
        kept.file = file or kept.file
        kept.uploaded = uploaded
        if name:
            before = self._programs.get(name)
            if before is not None:
                self._kept[before].names.remove(name)
            kept.names.append(name)
            self._programs[name] = program

    def copy(self) -> Shelf:
        """A shelf that changes by itself."""
        other = Shelf()
        other._kept = {program: replace(kept, names=[*kept.names]) for program, kept in self._kept.items()}
        other._programs = dict(self._programs)
        return other

    def remove(self, program: str) -> None:
        """Removes a program and all of its names."""
        for name in self._kept.pop(program).names:
            del self._programs[name]

    def find(self, reference: str) -> str:
        """The hash of the program that a hash, a name or the beginning of a hash means; raises UnknownName,
        BadRequest."""
        if reference in self._kept:
            return reference
        if reference in self._programs:
            return self._programs[reference]
        matches = [program for program in self._kept if program.startswith(reference)]
        if len(reference) < MIN_PREFIX or not matches:
            raise UnknownName(f"no program {reference!r}: upload it first, or see the list of programs")
        if len(matches) > 1:
            raise BadRequest(f"{len(matches)} programs have hashes that begin with {reference!r}: give more characters")
        return matches[0]


class Owners(Protocol):
    """Where a server with a state keeps what is in owners.json otherwise."""

    def read(self) -> Mapping[str, Mapping[str, Any]]:
        """What each owner keeps, by hash."""

    def write(self, owner: str, programs: Mapping[str, Any]) -> None:
        """What an owner keeps from now on. Raises OSError."""


def owners_of(value: Any) -> dict[str, dict[str, Kept]]:
    """The content of owners.json; raises AttributeError, TypeError or ValueError for anything else."""
    return {
        str(owner): {str(program): _kept(kept) for program, kept in programs.items()}
        for owner, programs in value.items()
    }


def _kept(value: Any) -> Kept:
    if isinstance(value, list):  # as it was written before there were files and dates
        value = {"names": value}
    kept = Kept(**value)
    if not all(isinstance(text, str) for text in (*kept.names, kept.file)):
        raise TypeError("a name is a text")
    kept.uploaded = float(kept.uploaded)
    return kept
