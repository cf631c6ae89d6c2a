"""What `pie check` finds in a program of the playground. A process with bounds reads it: it is a stranger's."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pie_control.errors import BadProgram, BadRequest
from pie_control.fair_places import FairPlaces
from pie_inference.options.lifetime import command_of

MOST_BYTES = 1 << 20
"""Bytes of a program, and of what is found in it, at most."""
SECONDS = 20.0
"""By the clock; of processor time half of it."""
MEMORY_BYTES = 1 << 30
PLACES = 2
FILE = "playground.py"


class Checker:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._places = FairPlaces(PLACES)

    async def check(self, source: bytes, tenant: str) -> list[dict[str, Any]]:
        """All findings, as `pie check --json` tells them. Raises BadRequest, BadProgram."""
        if not source:
            raise BadRequest("there is nothing to check: send the source of a program")
        if len(source) > MOST_BYTES:
            raise BadRequest(f"the program has {len(source)} bytes, more than {MOST_BYTES}: check it by `pie check`")
        async with self._places.place(tenant):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / FILE
                path.write_bytes(source)
                return await _run(path)


async def _run(path: Path) -> list[dict[str, Any]]:
    command = (*command_of("pie_control.cli"), "check", "--json", str(path))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        _bound(process.pid)
        async with asyncio.timeout(SECONDS):
            output, said = await asyncio.gather(_beginning(process.stdout), _beginning(process.stderr))
            await process.wait()
    except TimeoutError:
        raise BadProgram(f"the check took longer than {SECONDS:g} s: make the program smaller") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode not in (0, 1):
        last = said.decode(errors="replace").strip().rpartition("\n")[2].replace(str(path), FILE)
        reason = last or f"its process ended with {process.returncode}"
        raise BadProgram(f"the program cannot be checked: {reason}")
    if len(output) > MOST_BYTES:
        raise BadProgram(f"there are more findings than {MOST_BYTES} bytes of them: check the program by `pie check`")
    found: list[dict[str, Any]] = json.loads(output)
    return found


async def _beginning(stream: asyncio.StreamReader | None) -> bytes:
    """All that comes, but of more than MOST_BYTES only a little more."""
    assert stream is not None
    read = bytearray()
    while piece := await stream.read(1 << 16):
        if len(read) <= MOST_BYTES:
            read += piece
    return bytes(read)


def _bound(pid: int) -> None:
    if sys.platform == "linux":
        import resource

        resource.prlimit(pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.prlimit(pid, resource.RLIMIT_CPU, (int(SECONDS / 2), int(SECONDS / 2) + 1))
