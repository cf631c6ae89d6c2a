"""How many frames a host in a process of its own says: what it answers waits for a round that comes at once."""

from __future__ import annotations

import asyncio
import mmap
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import pytest

from pie_control.application.host import Host
from pie_control.application.messages import (
    Commands,
    Compile,
    Finished,
    FromHost,
    ModelState,
    Ping,
    Pong,
    Post,
    Quiet,
    Report,
    Results,
    Started,
    Stop,
    ToHost,
    Welcome,
)
from pie_control.authoring.native.programs import NativePrograms
from pie_control.calls.values import Completion, Done
from pie_control.config import InferletLimits
from pie_control.host_api.guest import Guest
from pie_control.inferlets.events import Ended, Launch
from pie_control.inferlets.manager import InferletManager
from pie_control.inferlets.model import ModelView
from pie_control.inferlets.relations.client import ClientMail
from pie_control.inferlets.waiting.waits import Waits
from pie_control.programs.python_guest import compiled_guest
from pie_control.programs.warm_pool import WarmPool
from pie_control.resources.address_space import AddressSpace
from pie_control.scheduling.turn import Progress, RunTokens
from pie_control.testing.fake_model import FakeModel

PROGRAM = "def main(args):\n    return 'hello'\n"
OF_A_MODEL = """
from inferlet_sdk import Context
async def main(args):
    Context(args.model)
    return await args.receive()
"""


class Control:
    """The `ControlLink` of a host that keeps the frames that it hears."""

    on_messages: Callable[[Sequence[ToHost]], None]
    on_pause: Callable[[], None] | None = None
    unsent = 0

    def __init__(self) -> None:
        self.heard: list[list[type]] = []
        self.ended: dict[int, Ended] = {}
        self.reported = 0  # bytes of memory

    def send(self, messages: Sequence[FromHost]) -> None:
        self.reported = next((one.memory_bytes for one in messages if isinstance(one, Report)), self.reported)
        self.heard.append([type(message) for message in messages])
        self.ended |= {one.number: one.event for one in messages if isinstance(one, Finished)}

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


DEFECT = "failed", "RuntimeError('a bug'): this is a defect of the server"
STOP, STOPPED = Stop(1, "terminated", "enough"), ("terminated", "enough")


@pytest.mark.parametrize(
    ("where", "told", "end"),
    [
        ((ClientMail, "post"), Post(1, "too much"), DEFECT),
        ((AddressSpace, "progressed"), Results("fake", progress=[Progress(1, 2, 1)]), DEFECT),
        ((AddressSpace, "answered"), Results("fake", [Completion(1, 5, Done())]), DEFECT),
        ((Waits, "resolve"), Results("fake", [Completion(1, 5, Done())]), DEFECT),
        ((ModelView, "run_advanced"), Results("fake", runs=RunTokens([1], [5], [65], [True])), DEFECT),
        ((Waits, "answer"), Post(1, "a turn"), DEFECT),
        ((InferletManager, "_keeps"), STOP, STOPPED),
        ((Guest, "release"), STOP, STOPPED),
        ((Waits, "end"), STOP, STOPPED),
    ],
)
def test_an_inferlet_with_which_the_server_fails_ends_alone(
    where: tuple[type, str],
    told: ToHost,
    end: tuple[str, str],
    guest_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    async def check(guest: Path) -> None:
        control = Control()
        host = Host(Welcome(1, InferletLimits(), 0, WarmPool(), str(guest)), control)
        control.says(ModelState("fake", FakeModel().describe()[0]))
        control.says(Compile(0, "p", "p", OF_A_MODEL, str(tmp_path), "p"))
        while not control.heard:
            await asyncio.sleep(0.001)
        control.says(Launch(1, "p", "p", [], {}, 0.0), Launch(2, "p", "p", [], {}, 0.0))
        while Commands not in chain.from_iterable(control.heard) or not host.is_idle:
            await asyncio.sleep(0.001)
        with monkeypatch.context() as patched:
            patched.setattr(*where, fails)
            control.says(told)
        control.says(Post(2, "hello"))
        while len(control.ended) < 2:
            await asyncio.sleep(0.001)
        assert (control.ended[1].status, control.ended[1].error) == end
        assert control.ended[2].result == '"hello"'
        host.close()

    asyncio.run(check(asyncio.run(compiled_guest(guest_cache))))
