"""One inferlet by itself: what it leaves behind of what it cancelled, or had not done when it ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pie_control.config import InferletLimits
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
    program = ProgramStore(tmp_path).describe(b"def main(args): ...", "nothing")
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
