"""Programs that are ready to launch, in the memory of hosts.

A program comes to a host when it is first launched there, and stays while there is room. The one that was launched
longest ago makes room, on all hosts, and is loaded from disk when it is wanted again. Inferlets keep what they run.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ..errors import BadProgram, Overloaded, UnknownName
from .program_host import ProgramHost
from .store import Program, ProgramStore

PREPARED_BYTES = 256 << 20
"""What prepared programs may take together on a host: text and code of Python programs, native code of components. A
larger one stays alone."""

Make = Callable[[Program, ProgramHost, bytes | None], Awaitable[int]]


@dataclass
class PreparedProgram:
    """`size` in bytes, on each of the hosts that have it."""

    size: int
    hosts: set[ProgramHost] = field(default_factory=set)


class PreparedPrograms:
    """`make` prepares a program on a host, from its content if that is not stored yet, and returns its size; it raises
    BadProgram, UnknownName, Overloaded. Belongs to one event loop."""

    def __init__(self, store: ProgramStore, make: Make, most_bytes: int = PREPARED_BYTES) -> None:
        self._store = store
        self._make = make
        self._most_bytes = most_bytes
        self._ready: OrderedDict[str, PreparedProgram] = OrderedDict()  # the one launched last is the last
        self._bytes = 0
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._losses: Counter[ProgramHost] = Counter()

    async def prepare(self, program: Program, host: ProgramHost, data: bytes | None = None) -> None:
        """Returns when the program can be launched on a host, until the caller waits for something else. However many
        ask for it at a time, it is compiled once."""
        while not self._is_ready(program.hash, host):
            task = others = self._under_way.get(program.hash)
            if task is None:
                task = self._under_way[program.hash] = asyncio.create_task(self._prepare(program, host, data))
                task.add_done_callback(_retrieve)
            try:
                await asyncio.shield(task)  # others may wait for it
            except UnknownName:
                if data is None or others is None:
                    raise  # else a launch was told that it was deleted, and an upload brings it anew
            except asyncio.CancelledError:
                if task.cancelled():
                    raise Overloaded("the server stops") from None
                raise
        self._ready.move_to_end(program.hash)

    def _is_ready(self, program: str, host: ProgramHost) -> bool:
        prepared = self._ready.get(program)
        return prepared is not None and host in prepared.hosts

    async def _prepare(self, program: Program, host: ProgramHost, data: bytes | None) -> None:
        losses = self._losses[host]
        try:
            size = await self._make(program, host, data)
            self._check_known(program, host, data)
            if self._losses[host] == losses:  # else the program went with the host, and is prepared again
                self._keep(program.hash, size, host)
        except (BadProgram, FileNotFoundError):
            self._check_known(program, host, data)  # or its files are gone for this reason
            raise
        finally:
            del self._under_way[program.hash]

    def _check_known(self, program: Program, host: ProgramHost, data: bytes | None) -> None:
        if data is None and not self._store.knows(program.hash):
            host.forget(program.hash)
            self._store.drop_if_unknown(program)
            raise UnknownName(f"program {program.title!r} was deleted")

    def _keep(self, program: str, size: int, host: ProgramHost) -> None:
        if program not in self._ready:
            self._ready[program] = PreparedProgram(size)
            self._bytes += size
        self._ready[program].hosts.add(host)
        while self._bytes > self._most_bytes and len(self._ready) > 1:
            self.forget(next(iter(self._ready)))

    def forget(self, program: str) -> None:
        """Drops a program from memory; nothing happens if it is not there."""
        prepared = self._ready.pop(program, None)
        if prepared is not None:
            self._bytes -= prepared.size
            for host in prepared.hosts:
                host.forget(program)

    def lost(self, host: ProgramHost) -> None:
        """A host has ended, with all that it had; the next one may be the same object."""
        self._losses[host] += 1
        for prepared in self._ready.values():
            prepared.hosts.discard(host)

    async def close(self) -> None:
        """Stops what is under way, and waits until no process is left of it. Idempotent."""
        tasks = tuple(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def under_way(self) -> tuple[str, ...]:
        """Programs that are being prepared."""
        return tuple(self._under_way)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Those who wait hear of an error; if nobody does any more, it is no news."""
    if not task.cancelled():
        task.exception()
