"""What one tenant keeps: programs by hash, and its names for them. Pure.

A tenant sees its own programs only, so nobody's upload changes what a reference of another tenant means. Within a
tenant a reference means one thing: a whole hash is that program; a name never looks like a hash or the beginning of
one; and a beginning must be unique.
"""

from __future__ import annotations

import re

from ..errors import BadRequest, UnknownName

MIN_PREFIX = 8
"""Characters of a hash by which a program can be named."""
MOST_NAME = 128
LOOKS_LIKE_A_HASH = re.compile(rf"[0-9a-fA-F]{{{MIN_PREFIX},}}")


def check_name(name: str) -> None:
    """Raises BadRequest for what cannot be the name of a program; an empty one means: none."""
    if len(name) > MOST_NAME or not name.isprintable():
        raise BadRequest(f"the name of a program has at most {MOST_NAME} printable characters: choose another name")
    if LOOKS_LIKE_A_HASH.fullmatch(name):
        raise BadRequest(
            f"the name {name!r} looks like the hash of a program: choose one with other characters than 0-9 and a-f, "
            f"or with fewer than {MIN_PREFIX}"
        )


class Shelf:
    """The programs and names of a tenant."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}  # of each program, oldest first
        self._programs: dict[str, str] = {}  # by name

    def __contains__(self, program: str) -> bool:
        return program in self._names

    def __len__(self) -> int:
        return len(self._names)

    @property
    def programs(self) -> tuple[str, ...]:
        """Hashes, in the order in which they came."""
        return tuple(self._names)

    def names(self) -> dict[str, list[str]]:
        """The names of each program, oldest first."""
        return {program: list(names) for program, names in self._names.items()}

    def name_of(self, program: str) -> str:
        """The newest name of a program; without any, the beginning of its hash."""
        return self._names[program][-1] if self._names.get(program) else program[:12]

    def named(self, name: str) -> str | None:
        """The program with this name."""
        return self._programs.get(name)

    def put(self, program: str, name: str = "") -> None:
        """Adds a program, or a name to it. The name leaves the program that had it before."""
        names = self._names.setdefault(program, [])
        if name:
            before = self._programs.get(name)
            if before is not None:
                self._names[before].remove(name)
            names.append(name)
            self._programs[name] = program

    def remove(self, program: str) -> None:
        """Removes a program and all of its names."""
        for name in self._names.pop(program):
            del self._programs[name]

    def find(self, reference: str) -> str:
        """The hash of the program that a hash, a name or the beginning of a hash means; raises UnknownName,
        BadRequest."""
        if reference in self._names:
            return reference
        if reference in self._programs:
            return self._programs[reference]
        matches = [program for program in self._names if program.startswith(reference)]
        if len(reference) < MIN_PREFIX or not matches:
            raise UnknownName(f"no program {reference!r}: upload it first, or see the list of programs")
        if len(matches) > 1:
            raise BadRequest(f"{len(matches)} programs have hashes that begin with {reference!r}: give more characters")
        return matches[0]
