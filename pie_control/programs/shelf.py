"""What one tenant keeps: programs by hash, and its names for them. Pure.

A tenant sees its own programs only, so nobody's upload changes what a reference of another tenant means. Within a
tenant a reference means one thing: a whole hash is that program; a name never looks like a hash or the beginning of
one; and a beginning must be unique.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from ..errors import BadRequest, StorageFull, UnknownName

MIN_PREFIX = 8
"""Characters of a hash by which a program can be named."""
MOST_NAME = 128
LOOKS_LIKE_A_HASH = re.compile(rf"[0-9a-fA-F]{{{MIN_PREFIX},}}")


def check_label(label: str) -> None:
    """Raises BadRequest for what cannot be shown as the name or the file of a program; an empty one means: none."""
    if len(label) > MOST_NAME or not label.isprintable():
        raise BadRequest(
            f"the name of a program has at most {MOST_NAME} printable characters, and {label[:MOST_NAME]!a} is none: "
            "choose another name, or a locale with UTF-8 (LC_ALL=C.UTF-8) if letters are shown as codes here"
        )


def check_name(name: str) -> None:
    """Raises BadRequest for what cannot be the name of a program; an empty one means: none."""
    check_label(name)
    if LOOKS_LIKE_A_HASH.fullmatch(name):
        raise BadRequest(
            f"the name {name!r} looks like the hash of a program: choose one with other characters than 0-9 and a-f, "
            f"or with fewer than {MIN_PREFIX}"
        )
    if "/" in name or name in (".", ".."):
        raise BadRequest(f"the name {name!r} means a file or folder where a program is named: choose one without `/`")


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

    def making_room(
        self,
        program: str,
        name: str,
        most: int,
        more_bytes: int,
        most_bytes: int,
        bytes_of: Callable[[str], int],
        used: Collection[str],
    ) -> list[str]:
        """Programs that must go so that this one can be kept under this name: those without a name that came first, and
        none of `used`. `most`: programs, and names. Raises StorageFull if they do not suffice, and names none."""
        going, count, kept = list[str](), len(self), sum(map(bytes_of, self._kept))
        left, more = kept, 0 if program in self else more_bytes
        unnamed = [one for one in self._kept if not (self._kept[one].names or one in used or one == program)]
        unnamed.sort(key=lambda one: self._kept[one].uploaded, reverse=True)
        while True:
            if program not in self and count - len(going) >= most:
                full = f"{count} programs, which is the limit (--max-programs, or your tenant's own)"
            elif name and name not in self._programs and self.names >= most:
                full = f"programs with {self.names} names, which is the limit (--max-programs, or your tenant's own)"
            elif left + more > most_bytes:
                full = f"{kept} bytes of programs: {more} more are beyond the limit (--max-stored-program-bytes, or "
                full += "your own)"
            else:
                return going
            if not unnamed:
                raise StorageFull(f"you keep {full}; delete some first: `pie delete`, or DELETE /v1/programs/HASH")
            going.append(unnamed.pop())
            left -= bytes_of(going[-1])

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


Owned = dict[str, dict[str, Kept]]
"""What owners keep, by hash: the content of owners.json, too."""
