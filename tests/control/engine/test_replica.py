"""A replica over a client that the test plays: turns, losses, restarts, and what inferlets placed there hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from pie_control.calls.core import create_queue, synchronize
from pie_control.calls.input_text.embed_txt import EmbedCommand
from pie_control.calls.kind import Barrier, Bind
from pie_control.engine.life import State
from pie_control.engine.replica import Replica
from pie_control.engine.restarts import Outage
from pie_control.errors import WorkerUnavailable
from pie_control.inferlets.model import ModelView
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.kinds import EMBEDS
from pie_control.resources.quotas import Ledgers, Quota
from pie_control.scheduling import Closed, HostQuiet, Opened, Reason, Scheduler, Turn
from pie_control.testing.fake_model import FakeModel
from pie_inference.protocol import DropAdapter, RunWave, WaveDone
from pie_inference.protocol.frames import FrameTooLong
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.played_client import PlayedClient

QUEUE = 1


class Scene:
    """One replica, and what it calls for."""

    def __init__(self) -> None:
        self.client = PlayedClient()
        self.now = 1000.0  # seconds
        self.pauses: list[float] = []  # taken so far
        self.may_wake = asyncio.Event()
        self.replica = Replica(self.client, Scheduler, lambda: self.now, self.sleep)
        self.calls: list[str] = []

    async def sleep(self, seconds: float) -> None:
        """Takes no time, once the test lets it."""
        self.pauses.append(seconds)
        await self.may_wake.wait()
        await asyncio.sleep(0)
        self.now += seconds

    async def start(self) -> None:
        await self.replica.start()
        self.replica.listen(lambda: self.calls.append("results"), lambda: self.calls.append("wake"), lambda: None)


def play(body: Callable[[Scene], Awaitable[None]]) -> None:
    async def check() -> None:
        scene = Scene()
        await scene.start()
        await asyncio.wait_for(body(scene), HANG_SECONDS)
        await scene.replica.close()
        assert scene.client.closed

    asyncio.run(check())


async def settled(replica: Replica) -> State:
    """What it is once its restart has ended."""
    while replica.life.state is not State.SERVING:
        await asyncio.sleep(0)
    return replica.life.state


async def reaches(scene: Scene, pauses: int) -> None:
    """Waits for the pause of this number."""
    while len(scene.pauses) < pauses:
        await asyncio.sleep(0)


def open_and_wait(replica: Replica, owner: int, future: int) -> AddressSpace:
    """An inferlet with a queue that it synchronizes."""
    model = ModelView(replica.description, Ledgers(Quota()))
    space = model.open(owner)
    create_queue.issue(space, QUEUE)
    synchronize.issue(space, QUEUE, future)
    opened, *commands = model.take_events()
    assert isinstance(opened, Opened)
    replica.open(opened)
    for command in commands:
        replica.take(command)
    return space


def take_turn(replica: Replica) -> Turn | None:
    """A turn in which all inferlets wait."""
    replica.quiet(0, None)
    return replica.turn()


def test_a_turn_without_anything_to_do_is_none() -> None:
    async def body(scene: Scene) -> None:
        assert scene.replica.turn() is None
        assert not scene.replica.quiet(0, None), "nobody waits for the host"
        assert scene.replica.turn() is None
        scene.replica.take(DropAdapter(1))
        turn = take_turn(scene.replica)
        assert turn is not None
        assert (turn.waves, turn.completions, turn.endings, turn.deadline) == ((), (), (), None)

    play(body)


def test_commands_take_effect_with_the_next_turn() -> None:
    async def body(scene: Scene) -> None:
        open_and_wait(scene.replica, 1, future=5)
        turn = scene.replica.turn()
        assert turn is not None
        assert [(one.owner, one.future) for one in turn.completions] == [(1, 5)]

    play(body)


def test_a_lost_worker_ends_those_placed_on_it_and_serves_the_next_after_its_restart() -> None:
    async def body(scene: Scene) -> None:
        replica = scene.replica
        open_and_wait(replica, 1, future=4)
        replica.turn()
        replica.take(Barrier(1, QUEUE, 2, 0, 5, ()))
        replica.open(Opened(2, 2.0))  # the scheduler has not heard of it yet
        scene.client.on_lost("it was killed")
        assert (replica.life.state, scene.calls) == (State.RESTARTING, ["results"])
        turn = take_turn(replica)
        assert turn is not None
        assert {(ending.owner, ending.reason) for ending in turn.endings} == {(1, Reason.LOST), (2, Reason.LOST)}
        assert all("fake was lost (it was killed); it restarts" in str(ending.error) for ending in turn.endings)
        assert not turn.completions, "its end answers the barrier"
        open_and_wait(replica, 3, future=7)  # waits for the new worker
        assert take_turn(replica) is None
        scene.client.may_restart.set()
        assert await settled(replica) is State.SERVING
        assert (replica.life.restarts, scene.calls[-1]) == (1, "wake")
        served = take_turn(replica)
        assert served is not None
        assert [(one.owner, one.future) for one in served.completions] == [(3, 7)]

    play(body)


def test_a_worker_whose_model_has_changed_does_not_serve() -> None:
    async def body(scene: Scene) -> None:
        scene.client.on_lost("it was killed")
        take_turn(scene.replica)
        scene.client.next_model = lambda: FakeModel(vocab_size=80)
        scene.client.may_restart.set()
        await reaches(scene, 1)
        assert "its files have changed: vocab_size differ" in str(scene.replica.life.outage)
        scene.client.next_model = lambda: FakeModel(num_pages=1234)
        scene.may_wake.set()
        assert await settled(scene.replica) is State.SERVING
        assert scene.replica.description.num_pages == 1234

    play(body)


def test_an_answer_that_does_not_fit_counts_as_a_loss() -> None:
    async def body(scene: Scene) -> None:
        scene.replica.open(Opened(1, 1.0))
        scene.client.on_wave_done(WaveDone(7, (), 0.0))
        turn = take_turn(scene.replica)
        assert turn is not None
        assert [ending.reason for ending in turn.endings] == [Reason.LOST]
        assert "wave 7" in str(turn.endings[0].error)
        assert scene.replica.life.state is State.RESTARTING

    play(body)


def test_nothing_is_kept_of_inferlets_that_end_while_the_worker_is_away() -> None:
    async def body(scene: Scene) -> None:
        replica = scene.replica
        open_and_wait(replica, 9, future=1)
        scene.client.on_lost("it was killed")
        replica.take(Barrier(9, QUEUE, 2, 0, 2, ()))  # its host does not know yet that it has ended
        take_turn(replica)
        for owner in range(1, 4):
            open_and_wait(replica, owner, future=owner)
        for owner in range(1, 3):
            replica.close_inferlet(Closed(owner))
        kept = [event for value in vars(replica).values() if isinstance(value, list | dict) for event in value]
        assert kept == [3, 3], "the inferlet that has not ended, and what it did"
        scene.client.may_restart.set()
        assert await settled(replica) is State.SERVING
        served = take_turn(replica)
        assert served is not None
        assert [(one.owner, one.future) for one in served.completions] == [(3, 3)]
        assert replica.statistics().inferlets == 1

    play(body)


def test_a_scheduler_that_fails_ends_its_inferlets_and_the_next_one_serves() -> None:
    async def body(scene: Scene) -> None:
        replica = scene.replica
        replica.open(Opened(1, 1.0))
        replica.turn()
        replica.take(HostQuiet(cast(Any, [])))  # nonsense of nobody
        turn = take_turn(replica)
        assert turn is not None
        assert [(ending.owner, ending.reason) for ending in turn.endings] == [(1, Reason.LOST)]
        assert "its scheduler failed" in str(turn.endings[0].error)
        scene.client.may_restart.set()
        assert await settled(replica) is State.SERVING
        open_and_wait(replica, 3, future=7)
        served = take_turn(replica)
        assert served is not None
        assert [(one.owner, one.future) for one in served.completions] == [(3, 7)]

    play(body)


def test_an_answer_that_comes_behind_the_loss_of_its_worker_is_none_of_the_next_one() -> None:
    async def body(scene: Scene) -> None:
        replica = scene.replica
        scene.client.on_lost("it was too slow")
        take_turn(replica)
        scene.client.on_wave_done(WaveDone(0, (), 0.0))
        scene.client.may_restart.set()
        assert await settled(replica) is State.SERVING
        open_and_wait(replica, 3, future=7)
        served = take_turn(replica)
        assert served is not None
        assert ([one.future for one in served.completions], served.endings) == ([7], ())

    play(body)


def test_a_wave_that_cannot_be_sent_counts_as_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(scene: Scene) -> None:
        def refuse(wave: RunWave) -> None:
            raise FrameTooLong("a message of 300000000 bytes")

        monkeypatch.setattr(scene.client, "send", refuse)
        open_and_wait(scene.replica, 1, future=5)
        scene.replica.take(Bind(1, QUEUE, 2, 0, None, (), EMBEDS, 0, 1))
        scene.replica.take(EmbedCommand(1, QUEUE, 3, 0, None, (), [65], ((0, 1),)))
        turn = take_turn(scene.replica)
        assert turn is not None
        assert [(ending.owner, ending.reason) for ending in turn.endings] == [(1, Reason.LOST)]
        assert "300000000 bytes" in str(turn.endings[0].error)

    play(body)


def test_the_error_says_how_often_it_was_tried_and_when_it_is_tried_next() -> None:
    async def body(scene: Scene) -> None:
        replica = scene.replica
        scene.client.fails = WorkerUnavailable("no memory")
        scene.client.may_restart.set()
        scene.client.on_lost("gone")
        take_turn(replica)
        for pauses in range(1, 4):
            await reaches(scene, pauses)
            assert replica.life.can_serve
            scene.may_wake.set()
            await asyncio.sleep(0)
            scene.may_wake.clear()
        open_and_wait(replica, 1, future=5)
        await reaches(scene, 4)
        assert replica.life.outage == Outage(4, 8.0, "no memory")
        turn = take_turn(replica)
        assert turn is not None
        message = (
            "a worker of model fake does not serve: restarting, tried 4 times, next try in 8 s; last reason: no memory"
        )
        assert [(ending.owner, str(ending.error)) for ending in turn.endings] == [(1, message)]
        assert not replica.life.can_serve
        scene.now += 4.0
        assert replica.life.can_serve, "a launch may wait for so long"
        scene.client.fails = None
        open_and_wait(replica, 2, future=6)
        scene.may_wake.set()
        assert await settled(replica) is State.SERVING
        assert (replica.life.restarts, replica.life.outage) == (1, None)
        served = take_turn(replica)
        assert served is not None
        assert [(one.owner, one.future) for one in served.completions] == [(2, 6)]

    play(body)


def test_a_worker_that_keeps_dying_is_restarted_after_growing_pauses_for_ever() -> None:
    async def body(scene: Scene) -> None:
        scene.client.may_restart.set()
        scene.may_wake.set()
        for number in range(12):
            scene.client.on_lost("again")
            assert await settled(scene.replica) is State.SERVING
            assert scene.replica.life.restarts == number + 1
        assert scene.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0]
        scene.now += 59.0
        scene.client.on_lost("it did not serve for long")
        states = [scene.replica.life.state]
        await settled(scene.replica)
        scene.now += 60.0
        scene.client.on_lost("after a good while")
        states.append(scene.replica.life.state)
        assert states == [State.PAUSING, State.RESTARTING], "at once, as after the first loss"
        await settled(scene.replica)
        assert len(scene.pauses) == 12

    play(body)


def test_a_worker_is_tried_again_whatever_went_wrong() -> None:
    async def body(scene: Scene) -> None:
        scene.client.fails = RuntimeError("a surprise")
        scene.client.may_restart.set()
        scene.client.on_lost("gone")
        scene.client.on_lost("told twice")
        await reaches(scene, 1)
        assert "the worker did not restart: RuntimeError('a surprise')" in str(scene.replica.life.outage)
        scene.client.fails = None
        scene.may_wake.set()
        assert await settled(scene.replica) is State.SERVING

    play(body)


def test_a_worker_that_is_lost_before_it_serves_again_is_tried_again() -> None:
    async def body(scene: Scene) -> None:
        async def lose_it_once(_: Replica) -> None:
            scene.replica.prepare = prepare
            scene.client.on_lost("gone again")

        prepare, scene.replica.prepare = scene.replica.prepare, lose_it_once
        scene.client.may_restart.set()
        scene.client.on_lost("gone")
        await reaches(scene, 1)
        assert "gone again" in str(scene.replica.life.outage)
        scene.may_wake.set()
        assert await settled(scene.replica) is State.SERVING

    play(body)


def test_a_replica_closes_while_it_pauses() -> None:
    async def body(scene: Scene) -> None:
        scene.client.fails = WorkerUnavailable("no memory")
        scene.client.may_restart.set()
        scene.client.on_lost("gone")
        await reaches(scene, 1)
        await scene.replica.close()
        assert (scene.replica.life.state, scene.replica.life.outage) == (State.CLOSED, None)

    play(body)


def test_what_an_inferlet_held_is_free_with_the_next_turn() -> None:
    async def body(scene: Scene) -> None:
        scene.replica.open(Opened(1, 1.0))
        take_turn(scene.replica)
        assert scene.replica.load().inferlets == 1
        scene.replica.close_inferlet(Closed(1))
        assert scene.calls == ["wake"]
        take_turn(scene.replica)
        assert (scene.replica.load().inferlets, scene.replica.statistics().inferlets) == (0, 0)

    play(body)


def test_it_starts_once() -> None:
    async def body(scene: Scene) -> None:
        with pytest.raises(AssertionError, match="a worker that is serving cannot be serving"):
            await scene.replica.start()
        assert scene.replica.life.state is State.SERVING

    play(body)
