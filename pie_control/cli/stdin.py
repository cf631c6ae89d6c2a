"""Lines of stdin as messages to an inferlet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

from pie_control.errors import Conflict, Overloaded, PieError

if TYPE_CHECKING:
    from pie_control.client.running import Running

STDIN = 0
END = ""
"""The message that stands for the end of stdin: `receive` has no other way to report it."""
MOST_AHEAD = 100
"""Lines that are read before the inferlet is sent them."""
FULL_SECONDS = 0.05
"""A line is sent again after this time, as long as the inferlet does not keep up."""


@contextlib.asynccontextmanager
async def sending_lines(running: Running) -> AsyncIterator[None]:
    """Sends each line without its line break while the block runs, then an empty message. Where one cannot be sent,
    `running` raises why."""
    loop, lines, room = asyncio.get_running_loop(), asyncio.Queue[str](), threading.Semaphore(MOST_AHEAD)

    def put(line: str) -> None:
        room.acquire()
        loop.call_soon_threadsafe(lines.put_nowait, line)

    start_reader(put)
    sender = asyncio.create_task(_send(lines, room, running))
    try:
        yield
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)


async def _send(lines: asyncio.Queue[str], room: threading.Semaphore, running: Running) -> None:
    try:
        while True:
            line = await lines.get()
            room.release()
            await _send_line(line, running)
    except Conflict:  # the inferlet has ended
        return
    except PieError as error:
        running.lose(error)


async def _send_line(line: str, running: Running) -> None:
    while True:
        try:
            return await running.send(line)
        except Overloaded:
            await asyncio.sleep(FULL_SECONDS)


def start_reader(put: Callable[[str], object]) -> None:
    """Reads in a daemon thread, on which it calls `put` with each line, then with END: works for a terminal, a pipe and
    a file, and does not keep the process alive."""

    def read() -> None:
        with contextlib.suppress(RuntimeError, CancelledError):  # the loop has closed, or closes
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
