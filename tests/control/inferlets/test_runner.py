"""Turns: who gets the processor when, over instances that are not real."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pie_control.application.rounds import Rounds
from pie_control.config import InferletLimits
from pie_control.inferlets import runner as runner_module
from pie_control.inferlets.lifecycle import InferletLife, Status
from pie_control.inferlets.processor_time import ProcessorTime
from pie_control.inferlets.relations.children import Kin
from pie_control.inferlets.runner import PREEMPTIONS_UNTIL_BUSY, Runner
from pie_control.sandbox.fibers import Step
from pie_control.tenants.tenant import Standing, Tenant


class Inferlet:
    """What the runner uses of one: its instance plays a list of steps."""

    def __init__(self, number: int, steps: Iterator[Step], log: list[str]) -> None:
        self.number = number
        self.status = Status.CREATED
        self.processor_time = ProcessorTime(60.0, 0.1)
        self.kin = Kin(number, InferletLimits(), None)
        self.life = InferletLife(age=0.0)
        self.instance = self
        self.waits = SimpleNamespace(answer=lambda instance: None)
        self.launched = SimpleNamespace(standing=Standing(Tenant("alice" if number % 2 else "bob")))
        self._steps = steps
        self._log = log

    def change(self, status: Status) -> None:
        self.status = status

    def step(self) -> Step:
        self._log.append(str(self.number))
        return next(self._steps)


class Scene:
    """The rounds of a host with inferlets that only play; it writes down when all wait."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.on_step: Callable[[Any, Step], object] = self._after_step
        rounds = Rounds(lambda quiet: self.log.append("quiet") if quiet else None)
        self.runner = rounds.runner = Runner(rounds.wake, self._stepped, self._failed)
        self._count = 0

    def add(self, *steps: Step, forever: Step | None = None) -> Any:
        self._count += 1

        def play() -> Iterator[Step]:
            yield from steps
            while forever:
                yield forever

        inferlet: Any = Inferlet(self._count, play(), self.log)
        self.runner.ready(inferlet)
        return inferlet

    def _stepped(self, inferlet: Any, step: Step) -> None:
        self.on_step(inferlet, step)

    def _failed(self, inferlet: Any, error: Exception) -> None:
        inferlet.status = Status.FAILED
        self.log.append(f"{inferlet.number} failed: {error}")

    def _after_step(self, inferlet: Any, step: Step) -> None:
        if step is Step.DONE:
            inferlet.status = Status.FINISHED
            self.log.append(f"{inferlet.number} done")


def play(body: Callable[[Scene], None], turns: int = 20) -> list[str]:
    async def check() -> list[str]:
        scene = Scene()
        body(scene)
        for _ in range(turns):
            await asyncio.sleep(0)
        return scene.log

    return asyncio.run(check())


def test_whose_payer_is_paused_has_no_turn_until_it_goes_on() -> None:
    async def check() -> None:
        scene, alice = Scene(), ("alice", "")
        endless, other, ends = scene.add(forever=Step.PREEMPTED), scene.add(Step.WAITING), scene.add(Step.WAITING)
        scene.runner.pause(alice)
        scene.runner.pause(alice)
        for _ in range(9):
            await asyncio.sleep(0)
        assert scene.log == ["2", "quiet"]
        assert [scene.runner.is_held(one) for one in (endless, other, ends)] == [True, False, True]
        assert not scene.runner.has_work
        scene.runner.ready(endless)  # more comes for it, and one ends
        ends.status = Status.TERMINATED
        scene.runner.forget(ends)
        assert not scene.runner.can_run(ends)
        scene.runner.resume(alice)
        scene.runner.resume(alice)
        for _ in range(9):
            await asyncio.sleep(0)
        turns = scene.log.count("1")
        assert turns > PREEMPTIONS_UNTIL_BUSY, "though it is busy"
        assert "3" not in scene.log
        scene.runner.pause(alice)
        for _ in range(9):
            await asyncio.sleep(0)
        assert scene.log.count("1") == turns
        scene.runner.resume(alice)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert scene.log.count("1") > turns

    asyncio.run(check())


def test_one_that_has_ended_is_not_held_for_a_paused_payer() -> None:
    async def check() -> None:
        scene = Scene()
        ended = scene.add(Step.WAITING)
        scene.runner.pause(("alice", ""))
        ended.status = Status.TERMINATED
        scene.runner.forget(ended)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not scene.runner.is_held(ended)
        assert scene.log == ["quiet"]

    asyncio.run(check())


def test_all_that_are_ready_run_before_it_is_quiet() -> None:
    def body(scene: Scene) -> None:
        scene.add(Step.WAITING)
        scene.add(Step.DONE)
        scene.add(Step.WAITING)

    assert play(body) == ["1", "2", "2 done", "3", "quiet"]


def test_a_turn_that_fails_keeps_nobody_waiting() -> None:
    def body(scene: Scene) -> None:
        def fails(inferlet: Any, step: Step) -> None:
            if inferlet.number == 1:
                raise RuntimeError("a bug")

        scene.on_step = fails
        scene.add(Step.WAITING)
        scene.add(Step.WAITING)

    played = play(body)
    assert [entry for entry in played if entry != "quiet"] == ["1", "1 failed: a bug", "2"]
    assert played[-1] == "quiet"


def test_one_that_is_ready_twice_runs_once() -> None:
    def body(scene: Scene) -> None:
        inferlet = scene.add(Step.WAITING, Step.WAITING)
        scene.runner.ready(inferlet)

    assert play(body) == ["1", "quiet"]


def test_launched_ones_let_others_go_first_but_do_not_wait_for_ever() -> None:
    def body(scene: Scene) -> None:
        scene.on_step = lambda inferlet, _: scene.runner.ready(inferlet) if inferlet.number == 1 else None
        scene.add(forever=Step.WAITING)
        scene.add(Step.WAITING)
        scene.add(Step.WAITING)

    assert "".join(play(body)[:9]) == "111121113"


def test_an_ended_one_does_not_run() -> None:
    def body(scene: Scene) -> None:
        scene.add(Step.WAITING).status = Status.TERMINATED

    assert play(body) == ["quiet"]


def test_a_short_preemption_does_not_make_it_quiet() -> None:
    def body(scene: Scene) -> None:
        scene.add(Step.PREEMPTED, Step.WAITING)
        scene.add(Step.WAITING)

    assert play(body) == ["1", "2", "1", "quiet"]


def test_one_that_needs_little_does_not_wait_for_many_that_compute() -> None:
    def body(scene: Scene) -> None:
        for _ in range(16):
            scene.add(*[Step.PREEMPTED] * (PREEMPTIONS_UNTIL_BUSY - 1), Step.WAITING)
        scene.add(Step.WAITING)

    played = play(body)
    assert played.index("17") == 16, "after one slice of each that came before"
    assert played.index("quiet") == len(played) - 1 == 16 * PREEMPTIONS_UNTIL_BUSY + 1


def test_waves_are_formed_after_a_time_though_some_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "ROUND_SECONDS", 0.0)

    def body(scene: Scene) -> None:
        for _ in range(4):
            scene.add(Step.PREEMPTED, Step.WAITING)

    played = play(body)
    assert played[:2] == ["1", "quiet"]
    assert played.count("quiet") >= 4
    assert [played.count(str(number)) for number in range(1, 5)] == [2] * 4


def test_restless_ones_do_not_keep_an_interrupted_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "ROUND_SECONDS", 0.0)

    def body(scene: Scene) -> None:
        restless = [scene.add(forever=Step.WAITING) for _ in range(3)]
        scene.add(Step.PREEMPTED, Step.PREEMPTED, Step.DONE)
        scene.on_step = lambda inferlet, step: (
            asyncio.get_running_loop().call_soon(scene.runner.ready, inferlet)
            if inferlet in restless
            else scene._after_step(inferlet, step)
        )

    assert "4 done" in play(body, 200)


def test_nobody_waits_for_one_that_is_busy() -> None:
    def body(scene: Scene) -> None:
        scene.add(forever=Step.PREEMPTED)
        scene.add(Step.WAITING)

    played = play(body)
    first_quiet = played.index("quiet")
    assert played[:first_quiet].count("1") == PREEMPTIONS_UNTIL_BUSY
    assert played[first_quiet:].count("1") > 1
    assert "quiet" in played[first_quiet + 1 :]


def test_busy_ones_take_turns() -> None:
    def body(scene: Scene) -> None:
        scene.add(forever=Step.PREEMPTED)
        scene.add(forever=Step.PREEMPTED)

    after = [entry for entry in play(body, 40) if entry != "quiet"][2 * PREEMPTIONS_UNTIL_BUSY :]
    assert after[:6] in (["1", "2"] * 3, ["2", "1"] * 3)


def test_one_that_waited_is_not_busy_any_more() -> None:
    steps = [*[Step.PREEMPTED] * PREEMPTIONS_UNTIL_BUSY, Step.WAITING, Step.PREEMPTED, Step.WAITING]

    async def check() -> list[str]:
        scene = Scene()
        inferlet = scene.add(*steps)
        for _ in range(10):
            await asyncio.sleep(0)
        del scene.log[:]
        scene.runner.ready(inferlet)
        for _ in range(10):
            await asyncio.sleep(0)
        return scene.log

    assert asyncio.run(check()) == ["1", "1", "quiet"]


def test_waves_are_formed_even_if_some_are_always_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "LONGEST_RUN_SECONDS", 0.0)

    def body(scene: Scene) -> None:
        restless = scene.add(forever=Step.WAITING)
        scene.on_step = lambda _, __: asyncio.get_running_loop().call_soon(scene.runner.ready, restless)

    assert play(body, 100).count("quiet") >= 5


def test_turns_and_time_are_counted() -> None:
    async def check() -> None:
        scene = Scene()
        inferlet = scene.add(Step.PREEMPTED, Step.WAITING)
        before = time.monotonic()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (scene.runner.turns, scene.runner.preemptions) == (2, 1)
        assert scene.runner.guest_seconds == pytest.approx(inferlet.processor_time.used)
        assert inferlet.life.last_turn >= before
        assert inferlet.status is Status.RUNNING

    asyncio.run(check())
