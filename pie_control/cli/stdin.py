"""Lines of stdin as messages to an inferlet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from pie_control.errors import Conflict

if TYPE_CHECKING:
    from pie_control.client.running import Running

STDIN = 0
END = ""
"""The message that stands for the end of stdin: `receive` has no other way to report it."""


@contextlib.asynccontextmanager
async def sending_lines(running: Running) -> AsyncIterator[None]:
    """Sends each line without its line break while the block runs, then an empty message."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    _start_reader(asyncio.get_running_loop(), lines.put_nowait)
    sender = asyncio.create_task(_send(lines, running))
    try:
        yield
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)


async def _send(lines: asyncio.Queue[str], running: Running) -> None:
    with contextlib.suppress(Conflict):  # the inferlet has ended
        while True:
            await running.send(await lines.get())


def _start_reader(loop: asyncio.AbstractEventLoop, put: Callable[[str], None]) -> None:
    start_reader(lambda line: loop.call_soon_threadsafe(put, line))


def start_reader(put: Callable[[str], object]) -> None:
    """Reads in a daemon thread, on which it calls `put` with each line, then with END: works for a terminal, a pipe and
    a file, and does not keep the process alive."""

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            for line in _lines():
                put(line)
            put(END)

    threading.Thread(target=read, name="pie-stdin", daemon=True).start()


def _lines() -> Iterator[str]:
    # From the descriptor: a daemon thread inside sys.stdin's buffer would crash the interpreter's shutdown.
    rest = b""
    while data := os.read(STDIN, 65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
    if rest:
        yield rest.decode(errors="replace")
