"""Programs that are ready to launch: compiled, linked, in memory.

A program is prepared once, however many ask for it at a time, and stays in memory while there is room. The one that was
launched longest ago makes room, and is loaded from disk when it is wanted again. Inferlets keep what they run.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..errors import Overloaded, UnknownName
from ..sandbox.linker import LinkedComponent
from .store import Program, ProgramStore

PREPARED_BYTES = 256 << 20
"""What prepared programs may take together: text and code of Python programs, native code of components. A larger one
stays alone."""


@dataclass(frozen=True)
class Prepared:
    """`linked`: of a component; `text` and `code`: of a Python program."""

    size: int
    linked: LinkedComponent | None = None
    text: str = ""
    code: str = ""


Make = Callable[[Program, bytes | None], Awaitable[Prepared]]


class PreparedPrograms:
    """`make` prepares a program, from its content if that is not stored yet; it raises BadProgram, UnknownName. Belongs
    to one event loop."""

    def __init__(self, store: ProgramStore, make: Make, most_bytes: int = PREPARED_BYTES) -> None:
        self._store = store
        self._make = make
        self._most_bytes = most_bytes
        self._ready: OrderedDict[str, Prepared] = OrderedDict()  # the one launched last is the last
        self._bytes = 0
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def prepare(self, program: Program, data: bytes | None = None) -> None:
        """Returns when `get` will give the program, until the caller waits for something else."""
        while program.hash not in self._ready:
            task = self._under_way.get(program.hash)
            if task is None:
                task = self._under_way[program.hash] = asyncio.create_task(self._prepare(program, data))
                task.add_done_callback(_retrieve)
            try:
                await asyncio.shield(task)  # others may wait for it
            except asyncio.CancelledError:
                if task.cancelled():
                    raise Overloaded("the server stops") from None
                raise

    async def _prepare(self, program: Program, data: bytes | None) -> None:
        try:
            prepared = await self._make(program, data)
            if data is None and not self._store.knows(program.hash):
                self._store.drop_if_unknown(program)
                raise UnknownName(f"program {program.name!r} was deleted")
            self._keep(program.hash, prepared)
        finally:
            del self._under_way[program.hash]

    def _keep(self, program: str, prepared: Prepared) -> None:
        self._ready[program] = prepared
        self._bytes += prepared.size
        while self._bytes > self._most_bytes and len(self._ready) > 1:
            _, oldest = self._ready.popitem(last=False)
            self._bytes -= oldest.size

    def get(self, program: str) -> Prepared:
        """A prepared program."""
        self._ready.move_to_end(program)
        return self._ready[program]

    def forget(self, program: str) -> None:
        """Drops a program from memory; nothing happens if it is not there."""
        prepared = self._ready.pop(program, None)
        if prepared is not None:
            self._bytes -= prepared.size

    async def close(self) -> None:
        """Stops what is under way, and waits until no process is left of it. Idempotent."""
        tasks = tuple(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the programs in memory."""
        return self._bytes


def _retrieve(task: asyncio.Task[None]) -> None:
    """Those who wait hear of an error; if nobody does any more, it is no news."""
    if not task.cancelled():
        task.exception()
