"""A host in a process of its own, as control sees it.

The process is a child of this one and ends with it, however that ends. They speak over a pair of sockets that nobody
else has. A host that hangs, holds too much memory or says what is no message is killed; then it is lost like one that
died by itself, and `start` gives another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence

from pie_inference.protocol.frames import MOST_UNTRUSTED

from ..errors import HostUnavailable
from ..host_memory import resident_memory
from ..processes.process import ChildProcess
from ..processes.stream import FrameStream
from .codec import VERSION, FrameError, decode_for_control, encode_for_host
from .messages import FromHost, HostReady, ToHost

MODULE = "pie_control.application.process"
HOST = "pie_control.application.host:Host"
"""What runs in the process: module and class, made with the `Welcome` and a `ControlLink`."""
START_SECONDS = 60.0
END_SECONDS = 2.0
"""A host that was told to end has this time for it."""
LAST_WORDS_SECONDS = 2.0
"""Between the end of the connection and that of the process, if it ends by itself."""
LOOK_SECONDS = 0.25
"""Between looks at its memory."""
QUESTIONS = 4
"""A host that has left as many unanswered hangs. Times are not compared: this process may have been stopped, too."""

log = logging.getLogger("pie.host")


class ProcessLink:
    """A `HostLink`. `number`: of the host. `memory_bytes`: the most that its process may hold; 0: no bound.
    `silent_seconds`: how long its loop may stand still; 0: for ever."""

    def __init__(self, number: int, *, memory_bytes: int = 0, silent_seconds: float = 30.0, host: str = HOST) -> None:
        self.on_messages: Callable[[Sequence[FromHost]], None] = lambda _: None
        self.on_lost: Callable[[str], None] = lambda _: None
        self._name = f"application host {number}"
        self._memory_bytes = memory_bytes
        self._silent_seconds = silent_seconds
        self._host = host
        self._process: ChildProcess | None = None
        self._stream: FrameStream | None = None
        self._starting: asyncio.Future[HostReady] | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()  # processes that were killed

    @property
    def pid(self) -> int | None:
        """The process's id; None while there is none."""
        return None if self._process is None else self._process.pid

    # ---- life ----

    async def start(self) -> HostReady:
        await self.close()
        self._starting = asyncio.get_running_loop().create_future()
        try:
            self._launch()
            ready = await asyncio.wait_for(self._starting, START_SECONDS)
            if ready.version != VERSION:
                raise HostUnavailable(f"{self._name} runs another version of the files: restart the server")
        except BaseException as error:
            self._starting = None
            await self._tear_down(0.0)
            if isinstance(error, TimeoutError):
                raise HostUnavailable(f"{self._name} was not ready within {START_SECONDS:g} s") from None
            if isinstance(error, OSError):
                raise HostUnavailable(f"{self._name} could not be started: {error}") from error
            raise
        self._starting = None
        self._watch_memory()
        self._watch_silence()
        return ready

    def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        self._stream = FrameStream(ours, self._take, self._stream_ended, answers=False, most_bytes=MOST_UNTRUSTED)
        with theirs:
            fd = theirs.fileno()
            arguments = [str(fd), self._host]
            self._process = ChildProcess(self._name, log, MODULE, arguments, os.environ, self._process_ended, (fd,))

    def send(self, messages: Sequence[ToHost]) -> None:
        if self._stream is not None:
            self._stream.send(encode_for_host(messages))

    def distrust(self, reason: str) -> None:
        self._lose(reason)

    async def close(self) -> None:
        await self._tear_down(END_SECONDS)
        await asyncio.gather(*self._ending)

    async def _tear_down(self, patience: float) -> None:
        """Closes the connection, by which the process ends, and sees that it does."""
        process = self._disconnect()
        if process is not None:
            await process.end(patience)

    def _disconnect(self) -> ChildProcess | None:
        """From now on nothing is heard of the host; gives its process, if there is one."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        process, self._process = self._process, None
        return process

    # ---- what it says ----

    def _take(self, frame: memoryview) -> None:
        try:
            messages = decode_for_control(frame)
        except FrameError as error:
            self._stream_ended(str(error))
            return
        if self._starting is None:
            self.on_messages(messages)
        elif not self._starting.done() and messages and isinstance(messages[0], HostReady):
            self._starting.set_result(messages[0])

    # ---- watching ----

    def _after(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, call)

    def _watch_memory(self) -> None:
        if not self._memory_bytes or self._process is None:
            return
        held = resident_memory(self._process.pid)
        if held > self._memory_bytes:
            most = f"more than the {self._memory_bytes >> 20} MiB that a host may hold"
            self._lose(f"it held {held >> 20} MiB of memory, {most}, and was killed")
        else:
            self._after("memory", LOOK_SECONDS, self._watch_memory)

    def _watch_silence(self) -> None:
        if not self._silent_seconds or self._stream is None:
            return
        if self._stream.unanswered >= QUESTIONS:
            self._lose(f"it did not answer for {self._silent_seconds:g} s and was killed (--host-timeout)")
        else:
            self._stream.ask()
            self._after("silence", self._silent_seconds / QUESTIONS, self._watch_silence)

    # ---- losing it ----

    def _stream_ended(self, wrong: str | None) -> None:
        """If the host has closed the connection, its end tells more, and should follow at once."""
        if wrong is not None:
            self._lose(f"it said what is no message and was killed: {wrong}")
        else:
            self._after("end", LAST_WORDS_SECONDS, lambda: self._lose("it closed the connection and was killed"))

    def _process_ended(self) -> None:
        """What it has said before is still heard."""
        if self._process is None or self._process.runs:
            return  # it was an earlier one
        if self._stream is not None:
            self._stream.read_all()
        if self._process is not None:
            self._lose(f"it {self._process.describe_end()}")

    def _lose(self, reason: str) -> None:
        """Kills the process, if it lives, and tells; once."""
        process = self._disconnect()
        if process is None:
            return
        process.kill()
        self._reap(process)
        if self._starting is not None:
            if not self._starting.done():
                self._starting.set_exception(HostUnavailable(f"{self._name} did not start: {reason}"))
        else:
            self.on_lost(reason)

    def _reap(self, process: ChildProcess) -> None:
        ending = asyncio.get_running_loop().create_task(process.end(0.0))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
