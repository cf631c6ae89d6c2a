"""One inferlet by itself: what it leaves behind of what it cancelled, or had not done when it ended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from pie_control.config import InferletLimits
from pie_control.errors import NotFound, QuotaExceeded
from pie_control.inferlets import mailbox
from pie_control.inferlets.events import Ended, Event, Launch, LogLine, Message, Span
from pie_control.inferlets.inferlet import Inferlet
from pie_control.inferlets.lifecycle import Status
from pie_control.inferlets.relations.mail import Letter
from pie_control.inferlets.waiting import waits
from pie_control.sandbox.fibers import Instance, Step
from pie_control.services.aside import Aside
from pie_control.texts import byte_size
from tests.control.sandbox.test_fibers import started
from tests.helpers.guard import HANG_SECONDS

NEVER = 2**62


class Pending:
    """Timers that never call back; `open` are those that nobody cancelled."""

    def __init__(self) -> None:
        self.open: list[_Timer] = []

    def call_at(self, deadline_ns: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        timer = _Timer(self.open)
        self.open.append(timer)
        return cast(asyncio.TimerHandle, timer)  # all that is asked of it is `cancel`


class _Timer:
    def __init__(self, open: list[_Timer]) -> None:
        self._open = open

    def cancel(self) -> None:
        self._open.remove(self)


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Pending:
    pending = Pending()
    monkeypatch.setattr(waits, "_call_at", pending.call_at)
    return pending


@pytest.fixture
def woken() -> list[Inferlet]:
    """Inferlets that can run."""
    return []


class Heard:
    """What the inferlet's client would hear."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.received_bytes = 0

    def runs(self, number: int) -> None:
        """It has its first turn."""

    def says(self, number: int, text: str) -> None:
        self.events.append(Message(text, inferlet=f"i{number}"))

    def logs(self, number: int, line: LogLine) -> None:
        self.events.append(line)

    def ended(self, number: int, event: Ended, cpu_seconds: float) -> None:
        self.events.append(event)

    def received(self, number: int, size: int, blob_bytes: int) -> None:
        self.received_bytes += size + blob_bytes

    def did(self, number: int, span: Span) -> None:
        raise AssertionError("nobody traces")

    def reads_at_end(self, number: int, run: int) -> None:
        """It reads nothing of a run before the end."""

    @property
    def messages(self) -> int:
        return sum(isinstance(event, Message) for event in self.events)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def inferlet(timers: Pending, woken: list[Inferlet], heard: Heard) -> Iterator[Inferlet]:
    aside = Aside()
    launched = Launch(1, "hash", "nothing", (), {})
    yield Inferlet(launched, None, None, InferletLimits(), woken.append, heard, aside)
    aside.close()


def test_a_cancelled_sleep_has_no_timer(inferlet: Inferlet, timers: Pending) -> None:
    first, second = inferlet.waits.futures.new(), inferlet.waits.futures.new()
    inferlet.waits.resolve_later(first, None, NEVER)
    inferlet.waits.resolve_later(second, None, NEVER)
    inferlet.waits.cancel(first)
    assert len(timers.open) == len(inferlet.waits.futures) == 1
    inferlet.waits.cancel(second)
    assert len(timers.open) == len(inferlet.waits.futures) == 0


def test_an_ended_inferlet_has_no_timers(inferlet: Inferlet, timers: Pending) -> None:
    inferlet.waits.resolve_later(inferlet.waits.futures.new(), None, NEVER)
    inferlet.waits.sleep_until(NEVER, None)
    inferlet.change(Status.RUNNING)
    inferlet.finish(Status.FINISHED, None)
    assert timers.open == []


def test_it_knows_who_it_is_and_how_old(heard: Heard) -> None:
    launched = Launch(7, "abc", "story", ["-n"], {"user": "mallory", "mine": "1"}, age=100.0)
    inferlet = Inferlet(launched, None, None, InferletLimits(), lambda _: None, heard, Aside())
    assert inferlet.environment == {"inferlet": "i7", "program": "abc", "user": "default", "mine": "1"}
    assert inferlet.life.started <= time.monotonic() - 100.0


def test_a_child_has_the_model_of_its_parent(heard: Heard) -> None:
    def model(environment: dict[str, str], parent: Inferlet | None = None) -> str:
        launched = Launch(8, "abc", "child", (), environment)
        child = Inferlet(launched, parent, None, InferletLimits(), lambda _: None, heard, Aside())
        return child.environment.get("model", "")

    given = Launch(7, "abc", "story", (), {"model": "chat", "mine": "1"})
    parent = Inferlet(given, None, None, InferletLimits(), lambda _: None, heard, Aside())
    assert [model({}, parent), model({"model": "demo"}, parent), model({})] == ["chat", "demo", ""]


@pytest.mark.parametrize("character", ["x", "世"])
def test_an_error_is_cut_to_the_size_of_a_message(inferlet: Inferlet, heard: Heard, character: str) -> None:
    inferlet.change(Status.RUNNING)
    inferlet.finish(Status.FAILED, "Traceback:\n" + character * 17_000_000 + "\nValueError")
    (ended,) = heard.events
    assert isinstance(ended, Ended)
    assert byte_size(ended.error or "") <= inferlet.limits.max_message_bytes
    assert (ended.error or "").startswith("Traceback:")
    assert (ended.error or "").endswith("ValueError")


# ---- work aside ----

WAIT = "(call $wait (i32.const 64) (i32.const 1) (i32.const 32)) (i32.const 0)"


def calling(inferlet: Inferlet, work: Callable[[], Any]) -> Instance:
    """An instance of the inferlet whose `wait` does the work aside."""
    instance = started(WAIT, ("wait",), {"wait": lambda _owner, _futures: inferlet.waits.run_aside(work)})
    inferlet.instance = instance
    inferlet.change(Status.RUNNING)
    return instance


async def answered(inferlet: Inferlet, woken: list[Inferlet]) -> str | None:
    """The outcome of an inferlet that waits for its work."""
    assert inferlet.instance.step() is Step.WAITING
    async with asyncio.timeout(HANG_SECONDS):
        while not woken:
            await asyncio.sleep(0.001)
    inferlet.waits.answer(inferlet.instance)
    assert inferlet.instance.step() is Step.DONE
    return inferlet.instance.outcome()


@pytest.mark.parametrize(
    ("work", "outcome"),
    [
        (lambda: [7, 8], None),
        (lambda: hidden(NotFound("there is none")), "there is none"),
        (lambda: hidden(KeyError("bug")), "internal error in a host function: KeyError('bug')"),
        (lambda: "not a list", "internal error in a host function"),
    ],
)
def test_work_aside_answers_the_call(
    inferlet: Inferlet, woken: list[Inferlet], work: Callable[[], Any], outcome: str | None
) -> None:
    instance = calling(inferlet, work)
    found = asyncio.run(answered(inferlet, woken))
    assert found == outcome or (outcome and outcome in (found or ""))
    instance.close()


def hidden(error: Exception) -> None:
    raise error


def test_work_aside_is_charged(inferlet: Inferlet, woken: list[Inferlet]) -> None:
    def burn() -> list[int]:
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass
        return []

    calling(inferlet, burn)
    assert asyncio.run(answered(inferlet, woken)) is None
    assert inferlet.processor_time.used >= 0.01
    inferlet.instance.close()


def test_an_inferlet_may_end_while_its_work_runs(inferlet: Inferlet, woken: list[Inferlet]) -> None:
    gate, left = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(HANG_SECONDS)
        left.set()

    async def check() -> None:
        instance = calling(inferlet, work)
        assert instance.step() is Step.WAITING
        instance.close()
        inferlet.finish(Status.TERMINATED, None)
        gate.set()
        await asyncio.to_thread(left.wait, 30)
        for _ in range(10):
            await asyncio.sleep(0.001)

    asyncio.run(check())
    assert woken == []


# ---- slow clients ----


def fill(inferlet: Inferlet) -> list[int]:
    """Sends until the inferlet gets futures; returns the first two."""
    futures: list[int] = []
    while len(futures) < 2:
        future = inferlet.mail.send("x" * 10_000, "gone")
        futures += [future] if future is not None else []
    return futures


def test_a_message_to_a_slow_client_has_a_future(inferlet: Inferlet) -> None:
    assert inferlet.mail.send("quick", "gone") is None
    assert len(inferlet.waits.futures) == 0  # the fast path costs nothing
    inferlet.mail.sender.room(0, read=True)
    first, second = fill(inferlet)
    assert inferlet.waits.futures.done([first, second]) == []
    inferlet.mail.sender.room(20_000, read=True)
    assert inferlet.waits.futures.take(first, str) == "gone"
    assert inferlet.waits.futures.take(second, str) == "gone"


def test_a_message_that_has_no_place_leaves_no_future(
    inferlet: Inferlet, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(inferlet)
    monkeypatch.setattr(mailbox, "MAX_KEPT_BYTES", 0)
    before = len(inferlet.waits.futures), heard.messages
    with pytest.raises(QuotaExceeded, match="await the future"):
        inferlet.mail.send("more")
    assert (len(inferlet.waits.futures), heard.messages) == before


def test_a_message_without_a_future_left_for_it_is_not_sent(inferlet: Inferlet, heard: Heard) -> None:
    fill(inferlet)
    while len(inferlet.waits.futures) < inferlet.limits.max_futures:
        inferlet.waits.futures.new()
    before = heard.messages
    with pytest.raises(QuotaExceeded, match="futures are open"):
        inferlet.mail.send("more")
    assert heard.messages == before


def test_a_message_is_bounded_in_bytes(inferlet: Inferlet, heard: Heard) -> None:
    with pytest.raises(QuotaExceeded, match=f"{3 << 20} bytes are more than a message may have"):
        inferlet.mail.send("世" * (1 << 20))
    assert heard.messages == 0


def test_a_cancelled_or_ended_sender_is_not_woken(inferlet: Inferlet) -> None:
    first, _ = fill(inferlet)
    inferlet.waits.cancel(first)
    inferlet.change(Status.RUNNING)
    inferlet.finish(Status.FINISHED, None)
    inferlet.mail.sender.room(8 << 20, read=True)
    assert len(inferlet.waits.futures) == 0


def test_it_tells_what_it_has_taken_and_not_what_futures_hold(inferlet: Inferlet, heard: Heard) -> None:
    futures = inferlet.waits.futures
    first, second = inferlet.mail.receive(), inferlet.mail.receive()
    inferlet.mail.post("text")
    inferlet.waits.cancel(first)  # the next receiver has it
    assert futures.done([second]) == [second]
    assert heard.received_bytes == 0
    futures.take(second, Letter).taken()
    assert heard.received_bytes == 4 + mailbox.EVENT_BYTES
