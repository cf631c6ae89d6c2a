"""The replicas of a model: where inferlets go, and which worker is refused."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest

from pie_control.calls.kind import Barrier, Command, OpenQueue, Prioritize
from pie_control.engine.life import PATIENCE_SECONDS
from pie_control.engine.model import MOST_NOTES, Model
from pie_control.engine.replica import Replica
from pie_control.errors import WorkerUnavailable
from pie_control.inferlets.model import SpaceEvent
from pie_control.scheduling import Closed, Opened, Reason, Scheduler
from pie_control.tenants.tenant import DEFAULT_STANDING
from pie_control.testing.fake_model import FakeModel
from tests.helpers.played_client import PlayedClient

RUNNING: Any = {owner: SimpleNamespace(started=float(owner), runs_as=DEFAULT_STANDING) for owner in range(10)}
"""What control knows of the inferlets of the host."""


def beginning(owner: int, *first: Command) -> list[SpaceEvent]:
    """An inferlet, up to its first command."""
    return [Opened(owner), OpenQueue(owner, 1), *(first or [Barrier(owner, 1, 1, 0, 1, ())])]


def test_a_model_places_inferlets_on_replicas_that_live() -> None:
    async def sleep(seconds: float) -> None:
        """Short pauses take no time, longer ones last for ever."""
        if seconds > PATIENCE_SECONDS:
            await asyncio.Event().wait()

    async def check() -> None:
        clients = [PlayedClient(), PlayedClient()]
        now = [0.0]
        model = Model("fake", [Replica(client, Scheduler, lambda: now[0], sleep) for client in clients])
        await model.start()
        first, second = model.replicas
        for owner in range(4):
            model.take(0, RUNNING, beginning(owner))
        assert (first.load().inferlets, second.load().inferlets) == (2, 2)
        clients[0].on_lost("gone")
        model.turns()
        for owner in range(4, 8):
            model.take(0, RUNNING, beginning(owner))
        assert second.load().inferlets == 6
        model.take(0, RUNNING, [Closed(7), OpenQueue(7, 1)])  # the last comes too late, and goes nowhere
        assert second.load().inferlets == 5
        clients[1].fails = clients[0].fails = WorkerUnavailable("no GPU")
        clients[1].on_lost("gone, too")
        for client in clients:
            client.may_restart.set()
        while not model.is_down:
            await asyncio.sleep(0)
        message = r"model fake has no worker: restarting, tried 4 times, next try in \d+ s; last reason: no GPU"
        model.turns()
        model.take(0, RUNNING, [Opened(9)])
        ((_, turn),) = model.turns()
        (ending,) = turn.endings
        assert (ending.owner, ending.reason) == (9, Reason.LOST)
        assert re.fullmatch(message, str(ending.error))
        states = [(one.state, one.outage and one.outage.reason) for one in model.statistics()]
        assert states == [("pausing", "no GPU")] * 2
        await model.close()

    asyncio.run(check())


def test_inferlets_are_told_of_pools_that_all_workers_have() -> None:
    """One that was told of the larger worker's was evicted on the smaller one, for lack of pages that were never
    there."""

    async def check() -> None:
        clients = [PlayedClient(), PlayedClient()]
        clients[0].model = FakeModel(num_pages=100, num_embeds=50)
        clients[1].model = FakeModel(num_pages=80, num_embeds=60)
        model = Model("fake", [Replica(client, Scheduler) for client in clients])
        await model.start()
        assert (model.told.num_pages, model.told.num_embeds) == (80, 50)
        assert model.replicas[0].description.num_pages == 100, "its scheduler has all of them"
        await model.close()

    asyncio.run(check())


def test_an_inferlet_has_its_place_from_its_first_command_on() -> None:
    async def check() -> None:
        clients = [PlayedClient(), PlayedClient()]
        model = Model("fake", [Replica(client, Scheduler) for client in clients])
        await model.start()
        for owner in range(3):
            model.take(0, RUNNING, [Opened(owner), OpenQueue(owner, 1)])
        assert [replica.load().inferlets for replica in model.replicas] == [0, 0]
        model.take(0, RUNNING, [Closed(0)])
        model.close_inferlet(1)
        for owner in range(3):
            model.take(0, RUNNING, [Barrier(owner, 1, 1, 0, 1, ())])
        assert [replica.load().inferlets for replica in model.replicas] == [1, 0]
        model.take(0, RUNNING, [Opened(3), OpenQueue(3, 1)])
        model.take(0, RUNNING, [Prioritize(3, 1, n) for n in range(MOST_NOTES)])
        assert [replica.load().inferlets for replica in model.replicas] == [1, 1], "notes are kept without bound"
        await model.close()

    asyncio.run(check())


def test_a_worker_must_serve_the_model_that_it_was_started_for() -> None:
    async def check() -> None:
        model = Model("another", [Replica(PlayedClient(), Scheduler)])
        with pytest.raises(WorkerUnavailable, match="the worker of model another serves fake"):
            await model.start()
        await model.close()

    asyncio.run(check())
