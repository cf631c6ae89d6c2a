"""A host in a process of its own: what is said arrives, and however the process ends, control hears of it."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pie_control.application import process_link
from pie_control.application.messages import FromHost, Post, Said
from pie_control.application.process_link import ProcessLink
from pie_control.errors import HostUnavailable
from pie_inference.protocol.frames import MOST_UNTRUSTED
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.processes import runs, until_gone
from tests.helpers.small_host import REFUSING_HOST, SILENT_MODULE, SMALL_HOST, WELCOME
from tests.helpers.tiers import WHOLE

MIB = 1 << 20
started_as_usual = pytest.mark.usefixtures("started_as_usual")


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


class Heard:
    """What a link tells."""

    def __init__(self, link: ProcessLink) -> None:
        self.link = link
        self.texts: list[str] = []
        self.losses: list[str] = []
        self._news = asyncio.Event()
        link.on_messages = self._hear
        link.on_lost = self._lose

    def _hear(self, messages: Sequence[FromHost]) -> None:
        self.texts += [text for message in messages if isinstance(message, Said) for text in message.texts]
        self._news.set()

    def _lose(self, reason: str) -> None:
        self.losses.append(reason)
        self._news.set()

    async def until(self, texts: int = 0, losses: int = 0) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while len(self.texts) < texts or len(self.losses) < losses:
                self._news.clear()
                await self._news.wait()

    async def loss(self) -> str:
        await self.until(losses=1)
        await asyncio.sleep(0.05)  # it is told once
        (reason,) = self.losses
        return reason


@asynccontextmanager
async def serving(
    *, host: str = SMALL_HOST, memory_bytes: int = 0, silent_seconds: float = 0.0
) -> AsyncIterator[Heard]:
    link = ProcessLink(3, host=host, memory_bytes=memory_bytes, silent_seconds=silent_seconds)
    heard = Heard(link)
    await link.start()
    link.send([WELCOME])
    try:
        yield heard
    finally:
        await link.close()


# ---- what is said --------------------------------------------------------------------------------------------------


@on_a_loop
async def test_messages_arrive_in_order_both_ways() -> None:
    async with serving() as heard:
        for number in range(200):
            heard.link.send([Post(number, str(number)), Post(number, "again")])
        await heard.until(texts=400)
        assert heard.texts == [text for number in range(200) for text in (str(number), "again")]
        assert heard.losses == []


@on_a_loop
async def test_frames_larger_than_any_buffer_arrive() -> None:
    texts = ["x" * size for size in (5 * MIB, 1, 3 * MIB, 70_000)]
    async with serving() as heard:
        heard.link.send([Post(1, text) for text in texts[:2]])
        heard.link.send([Post(1, text) for text in texts[2:]])
        await heard.until(texts=4)
        assert heard.texts == texts


@on_a_loop
async def test_all_that_a_turn_says_arrives_however_much_it_is() -> None:
    """A host trusts control; it takes frames that control would not take of it."""
    async with serving() as heard:
        heard.link.send([Post(1, "much", {"blob": bytes(MOST_UNTRUSTED)})])
        await heard.until(texts=1)
        assert heard.texts == ["much"]
        assert heard.losses == []


@on_a_loop
async def test_the_kernel_takes_the_process_before_this_one() -> None:
    async with serving() as heard:
        score = int(Path(f"/proc/{heard.link.pid}/oom_score_adj").read_text())
        own = int(Path("/proc/self/oom_score_adj").read_text())
        assert score == min(own + 500, 1000)


# ---- ends ----------------------------------------------------------------------------------------------------------


@started_as_usual
@on_a_loop
async def test_closing_ends_the_process() -> None:
    async with serving() as heard:
        pid = heard.link.pid
        assert pid is not None
    assert not runs(pid)
    assert heard.losses == []
    await heard.link.close()


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("segfault", "it was killed by signal 11"),
        ("exit", "it ended with status 7; its last words:\ncannot go on"),
        ("close", "it closed the connection and was killed"),
        ("raise", "it ended with status 1; its last words:\nTraceback(.|\n)*RuntimeError: a bug"),
        ("too large", "it ended with status 1; its last words:\nTraceback(.|\n)*OverflowError"),
        ("garbage", "it said what is no message and was killed: not a frame of messages"),
        ("too much", "it said what is no message and was killed: a frame of 4294967295 bytes, more than 268435456"),
    ],
)
@on_a_loop
async def test_the_reason_of_an_end_is_told(deed: str, said: str) -> None:
    async with serving() as heard:
        pid = heard.link.pid
        assert pid is not None
        heard.link.send([Post(1, deed)])
        reason = await heard.loss()
        until_gone(pid)
    assert re.match(said, reason), reason
    assert "behind it" not in heard.texts


@started_as_usual
@on_a_loop
async def test_what_was_said_before_the_end_is_heard() -> None:
    async with serving() as heard:
        heard.link.send([Post(1, "one"), Post(1, "exit")])
        await heard.loss()
        assert heard.texts == ["before"]


@pytest.mark.parametrize("deed", ["hang", "stop"])
@on_a_loop
async def test_a_host_that_hangs_is_killed(deed: str) -> None:
    async with serving() as heard:
        pid = heard.link.pid
        assert pid is not None
        heard.link.send([Post(1, "hello")])
        await heard.until(texts=1)
        heard.link.send([Post(1, deed)])
        vars(heard.link)["_silent_seconds"] = 0.4
        heard.link._watch_silence()
        assert await heard.loss() == "it did not answer for 0.4 s and was killed (--host-timeout)"
        until_gone(pid)


@on_a_loop
async def test_a_host_that_idles_is_not_killed() -> None:
    async with serving(silent_seconds=HANG_SECONDS) as heard:
        for _ in range(2 * process_link.QUESTIONS):
            heard.link._watch_silence()
            stream: Any = vars(heard.link)["_stream"]
            while stream.unanswered:
                await asyncio.sleep(0.001)
        heard.link.send([Post(1, "hello")])
        await heard.until(texts=1)
        assert heard.losses == []


@started_as_usual
@on_a_loop
async def test_a_host_that_holds_too_much_is_killed() -> None:
    async with serving(memory_bytes=300 * MIB) as heard:
        pid = heard.link.pid
        assert pid is not None
        heard.link.send([Post(1, "eat")])
        reason = await heard.loss()
        assert reason.startswith("it held ")
        assert reason.endswith(" MiB of memory, more than the 300 MiB that a host may hold, and was killed")
        until_gone(pid)


@on_a_loop
async def test_another_one_can_be_started() -> None:
    async with serving() as heard:
        for round in range(3):
            pid = heard.link.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await heard.until(losses=round + 1)
            assert heard.losses[-1] == "it was killed by signal 9"
            heard.link.send([Post(1, "to nobody")])
            await heard.link.start()
            heard.link.send([WELCOME, Post(1, f"round {round}")])
            await heard.until(texts=round + 1)
            assert heard.texts[-1] == f"round {round}"
            assert heard.link.pid != pid


# ---- beginnings ----------------------------------------------------------------------------------------------------


@started_as_usual
@on_a_loop
async def test_a_host_that_cannot_start_says_why() -> None:
    link = ProcessLink(3, host=SILENT_MODULE)
    with pytest.raises(HostUnavailable, match=r"application host 3 did not start: it ended .*(\n.*)*NoSuchHost"):
        await link.start()
    assert link.pid is None


@on_a_loop
async def test_a_host_that_fails_at_its_welcome_says_why() -> None:
    async with serving(host=REFUSING_HOST) as heard:
        assert "host 3 cannot serve here" in await heard.loss()


@started_as_usual
@on_a_loop
async def test_versions_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_link, "VERSION", "of tomorrow")
    link = ProcessLink(3, host=SMALL_HOST)
    with pytest.raises(HostUnavailable, match="runs another version of the files: restart the server"):
        await link.start()
    assert link.pid is None


@started_as_usual
@on_a_loop
async def test_a_host_that_is_never_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_link, "START_SECONDS", 0.001)
    link = ProcessLink(3, host=SMALL_HOST)
    with pytest.raises(HostUnavailable, match=r"was not ready within 0\.001 s"):
        await link.start()
    assert link.pid is None


# ---- the end of control --------------------------------------------------------------------------------------------

CONTROL = """
import asyncio, os, sys, time
from pie_control.application.messages import Post
from pie_control.application.process_link import ProcessLink
from tests.helpers.small_host import SMALL_HOST, WELCOME
async def main():
    link = ProcessLink(3, host=SMALL_HOST)
    await link.start()
    link.send([WELCOME, Post(1, sys.argv[1])])
    print(link.pid, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


DEATHS = {"nothing": signal.SIGTERM, "hang": signal.SIGABRT, "stop": signal.SIGKILL}
"""Where each state of a host and each death of control come once: these are in `make test`."""


@pytest.mark.parametrize(
    ("doing", "death"),
    [
        pytest.param(doing, death, marks=[] if death is DEATHS[doing] else [WHOLE])
        for doing in DEATHS
        for death in DEATHS.values()
    ],
)
@on_a_loop
async def test_no_process_is_left_when_control_dies(doing: str, death: signal.Signals) -> None:
    control = subprocess.Popen([sys.executable, "-c", CONTROL, doing], stdout=subprocess.PIPE, text=True)
    with control:
        assert control.stdout is not None
        pid = int(control.stdout.readline())
        assert runs(pid)
        control.send_signal(death)
    until_gone(pid)
