"""What the control process asks of an application host for programs. Untrusted code is compiled, linked and run there.

Messages carry these calls to a host that is a process of its own; `host.HostPrograms`, what answers them there, can be
called directly as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

CODE_SUFFIX = ".code"
"""Sealed files of what guests have made of Python programs end so."""
SourceText = tuple[str, str, str]
"""Name, text and code of a Python program, for `guest-source.source`: what the guest has made of the text is its
code, and then there is no text."""


class ProgramHost(Protocol):
    """An application host, as far as programs go. Two of them are equal only if they are the same object."""

    async def compile(self, program: str, name: str, text: str, folder: Path, stem: str) -> None:
        """Compiles a Python program and keeps its code in a sealed file where the disk takes it: from then on it can be
        launched there, by its hash. Raises BadProgram; Overloaded if the host ends."""

    async def load(self, program: str, path: Path) -> None:
        """Reads the code of a program from a sealed file, in place of `compile`. Raises BadProgram if it cannot be
        read, Overloaded if the host ends."""

    async def link(self, program: str, path: Path) -> None:
        """Checks a component, in a sealed file of compiled code, and links it: from then on it can be launched there.
        Raises BadProgram; Overloaded if the host ends."""

    def forget(self, program: str) -> None:
        """Drops a program, which will not be launched again; its inferlets go on. Nothing happens if it is not there,
        or if the host has ended."""
