"""Work beside the event loop: who gets the threads when, and what becomes of values and errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pie_control.services.aside import Aside, Job, ThreadShare
from tests.helpers.guard import HANG_SECONDS


class Scene:
    """One thread that works only while the gate is open, and a clock that only the work moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = 0.0
        monkeypatch.setattr("pie_control.services.aside.time.thread_time", lambda: self.clock)
        self.aside = Aside(threads=1)
        self.gate = threading.Event()
        self.log: list[str] = []
        self.jobs: list[Job] = []

    def add(self, share: ThreadShare, name: str, seconds: float = 1.0) -> Job:
        def work() -> str:
            self.gate.wait(HANG_SECONDS)
            self.clock += seconds
            self.log.append(name)
            return name

        job = self.aside.run(share, work, lambda: None)
        self.jobs.append(job)
        return job

    async def finish(self) -> None:
        self.gate.set()
        while not all(job.done for job in self.jobs):
            await asyncio.sleep(0.001)


def play(monkeypatch: pytest.MonkeyPatch, body: Callable[[Scene], Awaitable[None]]) -> list[str]:
    async def check() -> list[str]:
        scene = Scene(monkeypatch)
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await body(scene)
        finally:
            scene.gate.set()
            scene.aside.close()
        return scene.log

    return asyncio.run(check())


def test_one_that_used_the_threads_a_lot_waits_behind_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(scene: Scene) -> None:
        hog, modest = ThreadShare(), ThreadShare()
        scene.add(hog, "hog 1", seconds=100.0)
        await scene.finish()
        scene.gate.clear()
        scene.add(ThreadShare(), "holds the thread", seconds=0.0)
        scene.add(hog, "hog 2")
        for count in range(3):
            scene.add(modest, f"modest {count}")
        await scene.finish()

    assert play(monkeypatch, body) == ["hog 1", "holds the thread", *(f"modest {i}" for i in range(3)), "hog 2"]


def test_one_that_was_idle_has_saved_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an old inferlet could hold the threads for as long as it was modest."""
    rounds = 4

    async def body(scene: Scene) -> None:
        old, new = ThreadShare(), ThreadShare()
        scene.add(old, "old")
        for count in range(100):
            scene.add(new, f"new {count}")
            await scene.finish()
        scene.log.clear()
        for _ in range(rounds):
            scene.gate.clear()
            scene.add(old, "old")
            scene.add(new, "new")
            await scene.finish()

    assert play(monkeypatch, body).count("new") == rounds


def test_equal_ones_take_turns_in_the_order_in_which_they_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(scene: Scene) -> None:
        for name in "abcd":
            scene.add(ThreadShare(), name)
        await scene.finish()

    assert play(monkeypatch, body) == ["a", "b", "c", "d"]


def test_a_cancelled_job_is_not_begun_and_calls_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    async def body(scene: Scene) -> None:
        begun = scene.aside.run(ThreadShare(), lambda: scene.gate.wait(HANG_SECONDS), lambda: called.append("begun"))
        waits = scene.add(ThreadShare(), "waits")
        begun.cancel()
        waits.cancel()
        await scene.finish()

    assert play(monkeypatch, body) == []
    assert called == []


def test_values_errors_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(scene: Scene) -> None:
        def fail() -> None:
            scene.clock += 3.0
            raise KeyError("of the work")

        fine = scene.add(ThreadShare(), "fine", seconds=2.0)
        failed = scene.aside.run(ThreadShare(), fail, lambda: None)
        scene.jobs.append(failed)
        await scene.finish()
        assert (fine.take(), fine.seconds, failed.seconds) == ("fine", 2.0, 3.0)
        with pytest.raises(KeyError, match="of the work"):
            failed.take()
        assert scene.add(ThreadShare(), "next")  # the thread lives
        await scene.finish()

    assert play(monkeypatch, body) == ["fine", "next"]


def test_work_is_off_the_loop_and_the_answer_on_it() -> None:
    threads: dict[str, Any] = {}

    async def check() -> None:
        aside, answered = Aside(), asyncio.Event()

        def on_done() -> None:
            threads["answer"] = threading.current_thread()
            answered.set()

        aside.run(ThreadShare(), lambda: threads.update(work=threading.current_thread()), on_done)
        async with asyncio.timeout(HANG_SECONDS):
            await answered.wait()
        aside.close()

    asyncio.run(check())
    assert threads["answer"] is threading.current_thread()
    assert threads["work"] is not threading.current_thread()


def test_a_loop_that_closed_meanwhile_is_left_alone() -> None:
    gate, left = threading.Event(), threading.Event()

    async def check() -> Aside:
        aside = Aside(threads=1)
        aside.run(ThreadShare(), lambda: gate.wait(HANG_SECONDS), lambda: None)
        aside.run(ThreadShare(), left.set, lambda: None)
        return aside

    aside = asyncio.run(check())
    gate.set()
    assert left.wait(HANG_SECONDS), "the thread went on"
    aside.close()
    aside.close()
