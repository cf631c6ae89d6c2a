"""`python -m pie_control.application.process --parent PID DESCRIPTOR MODULE:CLASS`: an application host in a process of
its own. The control process starts it (`process_link.py`), speaks to it over the socket DESCRIPTOR, and ends it by
closing that."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pie_inference.options import lifetime

from ..garbage import collect_at_leisure
from ..processes.stream import FrameStream
from .codec import VERSION, decode_for_host, encode_for_control
from .messages import FromHost, HostReady, ToHost, Welcome

if TYPE_CHECKING:
    from .host import Host

LESS_WORTHY = 500
"""Added to the kernel's score of whom to kill when the machine runs out of memory: rather a host than the control
process, with whom all hosts would end."""
SCORE = Path("/proc/self/oom_score_adj")
FAILED = 1


class ControlEnd:
    """The `ControlLink` of the host. The first message is a `Welcome`, with which the host is made."""

    def __init__(self, connection: socket.socket, make_host: Callable[[Welcome, ControlEnd], Host]) -> None:
        self.on_messages: Callable[[Sequence[ToHost]], None] = self._welcome
        self.on_pause: Callable[[], None] | None = None
        self._make_host = make_host
        self._collecting: asyncio.Task[None] | None = None
        self.ended = asyncio.get_running_loop().create_future()  # with the exit status
        self._stream = FrameStream(
            connection,
            self._take,
            self._control_ended,
            answers=True,
            on_pause=self._pause,
        )

    @property
    def unsent(self) -> int:
        return self._stream.unsent

    def send(self, messages: Sequence[FromHost]) -> None:
        """A host that cannot say something ends, and says nothing more: control would wait for what is missing."""
        if self.ended.done():
            return
        try:
            frame = encode_for_control(messages)
        except Exception:
            traceback.print_exc()
            self._end(FAILED)
        else:
            self._stream.send(frame)

    def _welcome(self, messages: Sequence[ToHost]) -> None:
        welcome, *others = messages
        if not isinstance(welcome, Welcome):
            raise TypeError(f"the first message is no Welcome, but {type(welcome).__name__}")
        host = self._make_host(welcome, self)
        self._collecting = asyncio.create_task(collect_at_leisure(lambda: host.is_idle))
        if others:
            self.on_messages(others)

    def _take(self, frame: memoryview) -> None:
        """A host that fails at a frame may not be what control takes it for: it ends, and control starts another."""
        try:
            self.on_messages(decode_for_host(frame))
        except Exception:
            traceback.print_exc()
            self._end(FAILED)

    def _pause(self) -> None:
        if self.on_pause is not None:
            self.on_pause()

    def _control_ended(self, _: str | None) -> None:
        self._end(0)

    def _end(self, status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(status)


async def serve(connection: socket.socket, make_host: Callable[[Welcome, ControlEnd], Host]) -> NoReturn:
    """Runs a host until control closes the connection, and ends the process."""
    end = ControlEnd(connection, make_host)
    end.send([HostReady(VERSION, os.getpid())])
    status: int = await end.ended
    sys.stderr.flush()
    os._exit(status)  # freeing all inferlets in order would take time for nothing


def become_expendable() -> None:
    """The kernel takes this process before its parent. It leaves no core dump: guests may bring it down at will."""
    with suppress(OSError):  # of Linux only
        score = int(SCORE.read_text())
        SCORE.write_text(str(min(score + LESS_WORTHY, 1000)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(arguments: Sequence[str]) -> None:
    """Entry point."""
    _, parent, descriptor, host = arguments
    lifetime.ignore_signals()
    lifetime.die_with(int(parent))
    become_expendable()
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    # Never closed but by the end of the process: control hears of both at once, and so of all last words, however long
    # the interpreter takes to end.
    os.dup(connection.fileno())
    module, _, name = host.partition(":")
    asyncio.run(serve(connection, getattr(import_module(module), name)))


if __name__ == "__main__":
    main(sys.argv[1:])
