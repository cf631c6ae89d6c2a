"""A replica over a client that the test plays: turns, losses, restarts, and what inferlets placed there hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pie_control.calls.core import create_queue, synchronize
from pie_control.engine.replica import MAX_RESTARTS, Replica, State
from pie_control.errors import WorkerUnavailable
from pie_control.resources.quotas import Ledgers, Quota
from pie_control.scheduling import Reason, Scheduler
from pie_inference.protocol import WaveDone
from tests.helpers.played_client import PlayedClient

QUEUE = 1


class Scene:
    """One replica, and what it calls for."""

    def __init__(self) -> None:
        self.client = PlayedClient()
        self.replica = Replica(self.client, Scheduler, Ledgers(Quota()))
        self.calls: list[str] = []

    async def start(self) -> None:
        await self.replica.start()
        self.replica.listen(lambda: self.calls.append("results"), lambda: self.calls.append("wake"))


def play(body: Callable[[Scene], Awaitable[None]]) -> None:
    async def check() -> None:
        scene = Scene()
        await scene.start()
        await asyncio.wait_for(body(scene), 10)
        await scene.replica.close()
        assert scene.client.closed

    asyncio.run(check())


async def settled(replica: Replica) -> State:
    """What it is once its restart, if there is one, has ended."""
    while replica.state is State.RESTARTING:
        await asyncio.sleep(0)
    return replica.state


def open_and_wait(replica: Replica, owner: int, future: int) -> None:
    """An inferlet with a queue that it synchronizes."""
    space = replica.open(owner, created=float(owner))
    create_queue.issue(space, QUEUE)
    synchronize.issue(space, QUEUE, future)


def test_a_turn_without_anything_to_do_is_none() -> None:
    async def body(scene: Scene) -> None:
        assert scene.replica.turn(quiet=False) is None
        turn = scene.replica.turn(quiet=True)
        assert turn is not None
        assert (turn.waves, turn.completions, turn.endings, turn.deadline) == ((), (), (), None)

    play(body)


def test_commands_take_effect_with_the_turn_in_which_all_wait() -> None:
    async def body(scene: Scene) -> None:
        open_and_wait(scene.replica, 1, future=5)
        first = scene.replica.turn(quiet=False)
        assert first is not None
        assert first.completions == ()
        second = scene.replica.turn(quiet=True)
        assert second is not None
        assert [(one.owner, one.future) for one in second.completions] == [(1, 5)]

    play(body)


def test_a_lost_worker_ends_those_placed_on_it_and_serves_the_next_after_its_restart() -> None:
    async def body(scene: Scene) -> None:
        replica = scene.replica
        open_and_wait(replica, 1, future=5)
        replica.turn(quiet=False)
        replica.open(2, created=2.0)  # the scheduler has not heard of it yet
        scene.client.on_lost("it was killed")
        assert (replica.state, scene.calls) == (State.RESTARTING, ["results"])
        turn = replica.turn(quiet=True)
        assert turn is not None
        assert {(ending.owner, ending.reason) for ending in turn.endings} == {(1, Reason.LOST), (2, Reason.LOST)}
        assert all("fake died (it was killed); it restarts" in str(ending.error) for ending in turn.endings)
        assert [one.future for one in turn.completions] == [5]
        open_and_wait(replica, 3, future=7)  # waits for the new worker
        assert replica.turn(quiet=True) is None
        scene.client.may_restart.set()
        assert await settled(replica) is State.SERVING
        assert (replica.restarts, scene.calls[-1]) == (1, "wake")
        served = replica.turn(quiet=True)
        assert served is not None
        assert [(one.owner, one.future) for one in served.completions] == [(3, 7)]

    play(body)


def test_an_answer_that_does_not_fit_counts_as_a_loss() -> None:
    async def body(scene: Scene) -> None:
        scene.replica.open(1, created=1.0)
        scene.client.on_wave_done(WaveDone(7, (), 0.0))
        turn = scene.replica.turn(quiet=True)
        assert turn is not None
        assert [ending.reason for ending in turn.endings] == [Reason.LOST]
        assert "wave 7" in str(turn.endings[0].error)
        assert scene.replica.state is State.RESTARTING

    play(body)


def test_a_worker_that_cannot_restart_ends_who_waits_for_it() -> None:
    async def body(scene: Scene) -> None:
        replica = scene.replica
        scene.client.fails = WorkerUnavailable("no memory")
        scene.client.on_lost("gone")
        open_and_wait(replica, 1, future=5)
        scene.client.may_restart.set()
        assert await settled(replica) is State.DOWN
        assert (replica.down, replica.can_serve) == ("no memory", False)
        turn = replica.turn(quiet=True)
        assert turn is not None
        assert [(ending.owner, str(ending.error)) for ending in turn.endings] == [(1, "no memory")]
        assert replica.turn(quiet=True) is None

    play(body)


def test_a_worker_that_keeps_dying_stays_down() -> None:
    async def body(scene: Scene) -> None:
        scene.client.may_restart.set()
        for _ in range(MAX_RESTARTS):
            scene.client.on_lost("again")
            assert await settled(scene.replica) is State.SERVING
        scene.client.on_lost("once too often")
        assert scene.replica.state is State.DOWN
        assert "died 6 times in a minute and stays down: once too often" in scene.replica.down

    play(body)


def test_what_an_inferlet_held_is_free_with_the_next_turn() -> None:
    async def body(scene: Scene) -> None:
        scene.replica.open(1, created=1.0)
        scene.replica.turn(quiet=True)
        assert scene.replica.load().inferlets == 1
        assert scene.replica.release(1)
        assert not scene.replica.release(1)
        assert scene.calls == ["wake"]
        scene.replica.turn(quiet=True)
        assert (scene.replica.load().inferlets, scene.replica.statistics().inferlets) == (0, 0)

    play(body)


def test_it_starts_once() -> None:
    async def body(scene: Scene) -> None:
        with pytest.raises(AssertionError, match="a replica that is serving cannot be serving"):
            await scene.replica.start()
        assert scene.replica.state is State.SERVING

    play(body)
