"""How many frames a host in a process of its own says: what it answers waits for a round that comes at once."""

from __future__ import annotations

import asyncio
import mmap
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pie_control.application.host import Host
from pie_control.application.messages import (
    Compile,
    FromHost,
    Launch,
    Ping,
    Pong,
    Quiet,
    Report,
    Started,
    ToHost,
    Welcome,
)
from pie_control.authoring.native.programs import NativePrograms
from pie_control.config import InferletLimits
from pie_control.programs.python_guest import compiled_guest
from pie_control.programs.warm_pool import WarmPool

PROGRAM = "def main(args):\n    return 'hello'\n"


class Control:
    """The `ControlLink` of a host that keeps the frames that it hears."""

    on_messages: Callable[[Sequence[ToHost]], None]
    on_pause: Callable[[], None] | None = None
    unsent = 0

    def __init__(self) -> None:
        self.heard: list[list[type]] = []
        self.reported = 0  # bytes of memory

    def send(self, messages: Sequence[FromHost]) -> None:
        self.reported = next((one.memory_bytes for one in messages if isinstance(one, Report)), self.reported)
        self.heard.append([type(message) for message in messages])

    def says(self, *messages: ToHost) -> None:
        """One frame, and no other behind it."""
        self.on_messages(messages)
        assert self.on_pause is not None
        self.on_pause()


def test_a_launch_and_a_question_are_answered_in_one_frame(guest_cache: Path, tmp_path: Path) -> None:
    async def check(guest: Path) -> None:
        control = Control()
        host = Host(Welcome(1, InferletLimits(), 0, WarmPool(), str(guest)), control)
        control.says(Ping(0))
        assert control.heard == [[Report, Pong]]
        control.heard.clear()
        control.says(Compile(0, "p", "p", PROGRAM, str(tmp_path), "p"))
        while not control.heard:
            await asyncio.sleep(0)
        control.heard.clear()
        control.says(Ping(0), Launch(1, "p", "p", [], {}, 0.0))
        assert [kind for kind in control.heard[0] if kind is not Quiet][:3] == [Report, Pong, Started]
        host.close()

    asyncio.run(check(asyncio.run(compiled_guest(guest_cache))))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_report_knows_what_was_freed_since_the_last_turn() -> None:
    async def check() -> None:
        control = Control()
        host = Host(Welcome(1, InferletLimits(), 0, WarmPool(), ""), control, NativePrograms)
        size = 128 << 20
        with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.write(bytes(size))
            control.says(Ping(0))
            assert control.reported > size * 3 / 4
        control.says(Ping(0))
        assert control.reported < size / 4
        host.close()

    asyncio.run(check())
