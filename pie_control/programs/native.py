"""Compiles components to native code, in processes with bounds (`compile_child`)."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import IO

from pie_inference.control_groups import usable_cores
from pie_inference.options.cache_files import seal
from pie_inference.options.lifetime import command_of

from ..errors import BadProgram
from ..fair_places import FairPlaces
from .compile_child import FULL, MOST_REASON, REFUSED
from .library import keeping

PLACES = min(4, max(2, usable_cores()))
"""Components that are compiled at a time: more would need their memory and gain nothing."""
THREADS = min(8, usable_cores())
"""Threads of one of them: each takes address space, which is bounded."""
BUSY = 4
"""On a machine that has other work, compiling may take so many times as long."""
SUFFIX = ".cwasm"


class NativeCompiler:
    """Compiles components of tenants within `memory_bytes` each, and within `seconds` of all processors that one may
    use. Belongs to one event loop."""

    def __init__(self, seconds: float = 30.0, memory_bytes: int = 2 << 30) -> None:
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._places = FairPlaces(PLACES)

    async def compile(self, data: bytes, folder: Path, stem: str, tenant: str) -> Path:
        """Compiles a component to the sealed file `stem` in a folder; raises BadProgram if it is
        wrong, or does not keep to the bounds, and StorageFull."""
        async with self._places.place(tenant):
            with keeping():
                return await self._compile(data, folder, stem)

    async def _compile(self, data: bytes, folder: Path, stem: str) -> Path:
        cpu_seconds = math.ceil(self._seconds * THREADS)
        try:
            async with asyncio.timeout(self._seconds * BUSY):
                return await compile_to_file(data, folder, stem, self._memory_bytes, cpu_seconds)
        except Refused as error:
            raise BadProgram(f"not a component of the world of inferlets: {error}") from None
        except (TimeoutError, OutOfTime):
            raise BadProgram(
                f"the component took longer than {self._seconds:g} s to compile, which is the limit of this "
                "server: split large functions, or build it with less inlining (--compile-seconds)"
            ) from None
        except CompilerDied as error:
            raise BadProgram(
                f"the component cannot be compiled within {self._memory_bytes} bytes of memory: make it smaller, "
                f"or instantiate fewer components in it (--compile-memory-bytes); {error}"
            ) from None


class Refused(Exception):
    """The component is wrong: why."""


class OutOfTime(Exception):
    """The process has used up its time of processors."""


class CompilerDied(Exception):
    """The process ended without an answer, as it does when it gets no more memory."""


async def compile_to_file(data: bytes, folder: Path, stem: str, memory_bytes: int = 0, cpu_seconds: int = 0) -> Path:
    """Compiles a component to the sealed file `stem` in a folder; 0: no bound. Raises Refused, OutOfTime, CompilerDied,
    OSError. Leaves no process and no unfinished file, also when it is cancelled."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        output, reason = Path(scratch) / "compiled", Path(scratch) / "reason"
        await asyncio.to_thread((Path(scratch) / "component").write_bytes, data)
        with open(Path(scratch) / "component", "rb") as component, open(reason, "wb") as said:
            status = await _run(component, said, [str(output), str(memory_bytes), str(cpu_seconds)])
        if status == FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if status == REFUSED:
            raise Refused(_beginning(reason, 4 * MOST_REASON))
        if status == -signal.SIGXCPU:
            raise OutOfTime
        if status != 0:
            raise CompilerDied(f"the compiler ended with status {status}: {_beginning(reason, 300)}")
        return await asyncio.to_thread(seal, output, folder, stem, SUFFIX)


async def _run(stdin: IO[bytes], stderr: IO[bytes], arguments: list[str]) -> int:
    """Runs the process to its end, or ends it; returns its status."""
    process = await asyncio.create_subprocess_exec(
        *command_of(f"{__package__}.compile_child"),
        *arguments,
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env={**os.environ, "RAYON_NUM_THREADS": str(THREADS), "MALLOC_ARENA_MAX": "2", "RUST_BACKTRACE": "0"},
    )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _beginning(path: Path, most: int) -> str:
    with open(path, "rb") as file:
        return file.read(most).decode(errors="replace").strip()
