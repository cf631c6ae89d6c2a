"""One inferlet by itself: what it leaves behind of what it cancelled, or had not done when it ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pie_control.config import InferletLimits
from pie_control.errors import QuotaExceeded
from pie_control.inferlets import mailbox
from pie_control.inferlets.inferlet import Inferlet
from pie_control.inferlets.lifecycle import Status
from pie_control.programs.store import ProgramStore
from pie_control.services.timers import Timer, Timers

NEVER = 2**62


class Pending(Timers):
    """Timers that never call back; `open` are those that nobody cancelled."""

    def __init__(self) -> None:
        self.open: list[Timer] = []

    def call_at(self, deadline_ns: int, callback: Callable[[], None]) -> Timer:
        timer = _Timer(self.open)
        self.open.append(timer)
        return timer


class _Timer:
    def __init__(self, open: list[Timer]) -> None:
        self._open = open

    def cancel(self) -> None:
        self._open.remove(self)


@pytest.fixture
def timers() -> Pending:
    return Pending()


@pytest.fixture
def inferlet(tmp_path: Path, timers: Pending) -> Inferlet:
    program = ProgramStore(tmp_path).put(b"def main(args): ...", "nothing")
    return Inferlet(1, program, [], {}, InferletLimits(), lambda inferlet: None, timers)


def test_a_cancelled_sleep_has_no_timer(inferlet: Inferlet, timers: Pending) -> None:
    first, second = inferlet.futures.new(), inferlet.futures.new()
    inferlet.resolve_later(first, None, NEVER)
    inferlet.resolve_later(second, None, NEVER)
    inferlet.cancel(first)
    assert len(timers.open) == len(inferlet.futures) == 1
    inferlet.cancel(second)
    assert len(timers.open) == len(inferlet.futures) == 0


def test_an_ended_inferlet_has_no_timers(inferlet: Inferlet, timers: Pending) -> None:
    inferlet.resolve_later(inferlet.futures.new(), None, NEVER)
    inferlet.sleep_until(NEVER, None)
    inferlet.change(Status.RUNNING)
    inferlet.finish(Status.FINISHED, None)
    assert timers.open == []


def fill(inferlet: Inferlet) -> list[int]:
    """Sends until the inferlet gets futures; returns the first two."""
    futures: list[int] = []
    while len(futures) < 2:
        future = inferlet.put_message("x" * 10_000, "gone")
        futures += [future] if future is not None else []
    return futures


def test_a_message_to_a_slow_client_has_a_future(inferlet: Inferlet) -> None:
    assert inferlet.put_message("quick", "gone") is None
    assert len(inferlet.futures) == 0  # the fast path costs nothing
    inferlet.outbox.attach(lambda: None)
    first, second = fill(inferlet)
    assert inferlet.futures.done([first, second]) == []
    while not inferlet.futures.done([first]):
        inferlet.outbox.take()
    assert inferlet.futures.take(first, str) == "gone"
    assert inferlet.futures.take(second, str) == "gone"


def test_a_message_that_has_no_place_leaves_no_future(inferlet: Inferlet, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(inferlet)
    monkeypatch.setattr(mailbox, "MAX_KEPT_BYTES", 0)
    before = len(inferlet.futures), inferlet.outbox.kept_bytes
    with pytest.raises(QuotaExceeded, match="await the future"):
        inferlet.put_message("more")
    assert (len(inferlet.futures), inferlet.outbox.kept_bytes) == before


def test_a_message_without_a_future_left_for_it_is_not_sent(inferlet: Inferlet) -> None:
    fill(inferlet)
    while len(inferlet.futures) < inferlet.limits.max_futures:
        inferlet.futures.new()
    before = inferlet.outbox.kept_bytes
    with pytest.raises(QuotaExceeded, match="futures are open"):
        inferlet.put_message("more")
    assert inferlet.outbox.kept_bytes == before


def test_a_cancelled_or_ended_sender_is_not_woken(inferlet: Inferlet) -> None:
    first, _ = fill(inferlet)
    inferlet.cancel(first)
    inferlet.change(Status.RUNNING)
    inferlet.finish(Status.FINISHED, None)
    while inferlet.outbox.take():
        pass
    assert len(inferlet.futures) == 0
