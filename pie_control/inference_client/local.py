"""A worker that this process starts, over a pair of sockets that nobody else has.

A wave is one system call there and one back. ZeroMQ, which workers of other machines need, has a thread of its own at
each end: four threads more have to wake up for a wave, which takes a small one 1.7 to 2.5 times as long (190-235
against 99-137 us there and back where all slept for 3 ms, 74-106 against 31-37 us where nobody did).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from pie_inference.protocol import ProtocolError, Ready
from pie_inference.protocol.frames import pack, unpack

from ..processes.process import ChildProcess
from ..processes.stream import FrameStream
from .connection import Connection, OnFrames, OnLost
from .process import WORKER, start_worker

START_SECONDS = 300.0
"""Without a sign of life. A worker that loads a large model tells its progress."""
LAST_WORDS_SECONDS = 0.3
"""A process whose connection has ended should end within this time."""


class LocalConnection:
    """A `Connection` over this end of a pair of sockets. `on_end` hears of its end, with what is wrong if the worker
    has said what is no message."""

    def __init__(self, end: socket.socket, on_frames: OnFrames, on_end: Callable[[str | None], None]) -> None:
        self._on_frames = on_frames
        self._on_end = on_end
        self._stream = FrameStream(end, self._take, on_end, answers=False)

    def send(self, frames: list[bytes]) -> None:
        self._stream.send_parts(pack(frames))

    def read_all(self) -> None:
        """Takes all that a worker has said that has ended."""
        self._stream.read_all()

    def _take(self, frame: memoryview) -> None:
        try:
            frames = unpack(frame)
        except ProtocolError as error:
            self._on_end(str(error))
        else:
            self._on_frames(frames)

    def close(self) -> None:
        self._stream.close()


class LocalWorker:
    """A `Connector` to a worker process of its own. `arguments`: options of `python -m MODULE` beside --endpoint."""

    server = ""

    def __init__(self, arguments: Sequence[str], module: str = WORKER, start_seconds: float = START_SECONDS) -> None:
        self._module = module
        self._arguments = tuple(arguments)
        self._start_seconds = start_seconds
        self._process: ChildProcess | None = None
        self._connection: LocalConnection | None = None
        self._on_lost: OnLost

    def open(self, on_frames: OnFrames, on_lost: OnLost) -> Connection:
        self._on_lost = on_lost
        ours, theirs = socket.socketpair()
        self._connection = connection = LocalConnection(ours, on_frames, self._connection_ended)
        try:
            with theirs:
                self._process = start_worker(self._module, self._arguments, theirs.fileno(), self._process_ended)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def patience(self) -> float:
        return self._start_seconds - (self._process.silent_seconds if self._process else 0.0)

    def gives_up(self) -> str:
        return f"no worker was ready within {self._start_seconds:g} s: try again, as what it has compiled is kept"

    def is_told(self, progress: str) -> None:
        """A process that was started here says it on stderr instead."""

    def why_not(self, ready: Ready) -> str | None:
        return None

    async def leave(self, seconds: float) -> None:
        process, self._process, self._connection = self._process, None, None
        if process is not None:
            await process.end(seconds)

    def _process_ended(self) -> None:
        """Its last message says more than its exit status."""
        if self._connection is not None and self._process is not None:
            self._connection.read_all()
            self._on_lost(f"the worker {self._process.describe_end()}")

    def _connection_ended(self, wrong: str | None) -> None:
        """The end of a process tells more than that of its connection, and should follow at once."""
        if wrong is not None:
            self._on_lost(f"the worker sent something that is no message: {wrong}")
        else:
            asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._tell_end, self._process)

    def _tell_end(self, process: ChildProcess | None) -> None:
        if process is not None and process is self._process:
            gone = "closed its connection" if process.runs else process.describe_end()
            self._on_lost(f"the worker {gone}")
