"""Compiles programs, once for all hosts: the compiled form lies on disk, and hosts load it from there."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path

from pie_inference.options.cache_files import find_sealed

from ..errors import UnknownName
from ..fair_places import FairPlaces
from ..sandbox.version import code_version
from .native import SUFFIX, NativeCompiler
from .program_host import CODE_SUFFIX, ProgramHost
from .python_guest import guest_hash
from .store import Program, ProgramStore

PYTHON_PLACES = 2
"""Python programs that are compiled at a time: they take turns with the inferlets of a host."""

PACKAGE = "\0zip:"
"""What tells a guest that the text of a program is an archive in base64 (`inferlet_sdk.guest.packages.compiled`)."""


def _package(archive: bytes) -> str:
    return PACKAGE + b64encode(archive).decode()


class ProgramCompiler:
    """Brings programs to hosts, compiled. Belongs to one event loop."""

    def __init__(self, store: ProgramStore, native: NativeCompiler) -> None:
        self._store = store
        self._native = native
        self._python_places = FairPlaces(PYTHON_PLACES)
        self._code_version = code_version()
        self._guest_hash = guest_hash()[:16]

    async def bring(self, program: Program, host: ProgramHost, data: bytes | None = None) -> int:
        """Has a host ready to launch a program, whose content is `data` or lies in the store; returns the bytes that
        this takes there. Raises BadProgram, UnknownName if the program is gone, Overloaded if the host ends or the
        program cannot be read now."""
        if program.kind != "component":
            return await self._bring_python(program, host, data)
        path = await self._compiled(program, data)
        size = path.stat().st_size
        await host.link(program.hash, path)
        return size

    async def _content(self, program: Program, data: bytes | None) -> bytes:
        data = data or await asyncio.to_thread(self._store.try_read, program)
        if data is None:
            self._store.forget(program)
            raise UnknownName(f"program {program.title!r} is damaged or gone from the disk: upload it again")
        return data

    async def _compiled(self, program: Program, data: bytes | None) -> Path:
        folder, stem = self._store.compiled, f"{program.hash}-{self._code_version}"
        found = await asyncio.to_thread(find_sealed, folder, stem, SUFFIX)
        if found is not None:
            return found
        return await self._native.compile(await self._content(program, data), folder, stem, program.owner)

    async def _bring_python(self, program: Program, host: ProgramHost, data: bytes | None) -> int:
        content = await self._content(program, data)
        folder, stem = self._store.compiled, f"{program.hash}-{self._guest_hash}"
        path = await asyncio.to_thread(find_sealed, folder, stem, CODE_SUFFIX)
        if path is not None:
            await host.load(program.hash, path)
            return path.stat().st_size
        text = await asyncio.to_thread(_package if program.kind == "package" else bytes.decode, content)
        file = program.title if program.kind == "package" else f"{program.title.removesuffix('.py')}.py"
        async with self._python_places.place(program.owner):
            await host.compile(program.hash, file, text, folder, stem)
        path = await asyncio.to_thread(find_sealed, folder, stem, CODE_SUFFIX)
        return len(text) if path is None else path.stat().st_size
