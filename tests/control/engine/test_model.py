"""The replicas of a model: where inferlets go, and which worker is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pie_control.calls.allocate import alloc_kvpage
from pie_control.calls.core import create_queue
from pie_control.config import build_config
from pie_control.engine.model import Model
from pie_control.engine.replica import PATIENCE_SECONDS, Replica
from pie_control.errors import Cancelled, QuotaExceeded, WorkerError, WorkerUnavailable
from pie_control.resources.quotas import Ledgers, Quota
from pie_control.runtime import build_server
from pie_control.scheduling import Scheduler
from pie_control.tenants.tenant import Standing, Tenant
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.played_client import PlayedClient
from tests.helpers.tree import DEMO_MODEL


def test_a_model_places_inferlets_on_replicas_that_live() -> None:
    async def sleep(seconds: float) -> None:
        """Short pauses take no time, longer ones last for ever."""
        if seconds > PATIENCE_SECONDS:
            await asyncio.Event().wait()

    async def check() -> None:
        clients = [PlayedClient(), PlayedClient()]
        ledgers, now = Ledgers(Quota()), [0.0]
        model = Model("fake", [Replica(client, Scheduler, ledgers, lambda: now[0], sleep) for client in clients])
        await model.start()
        first, second = model.replicas
        for owner in range(4):
            model.open(owner, created=float(owner))
        assert (first.load().inferlets, second.load().inferlets) == (2, 2)
        clients[0].on_lost("gone")
        first.turn(quiet=True)
        for owner in range(4, 8):
            model.open(owner, created=float(owner))
        assert second.load().inferlets == 6
        model.release(7)
        assert second.load().inferlets == 5
        clients[1].fails = clients[0].fails = WorkerUnavailable("no GPU")
        clients[1].on_lost("gone, too")
        for client in clients:
            client.may_restart.set()
        while not model.is_down:
            await asyncio.sleep(0)
        message = r"model fake has no worker: restarting, tried 4 times, next try in \d+ s; last reason: no GPU"
        with pytest.raises(WorkerError, match=message):
            model.open(9, created=9.0)
        states = [(one.state, one.outage and one.outage.reason) for one in model.statistics()]
        assert states == [("pausing", "no GPU")] * 2
        await model.close()

    asyncio.run(check())


def test_a_worker_must_serve_the_model_that_it_was_started_for() -> None:
    async def check() -> None:
        model = Model("another", [Replica(PlayedClient(), Scheduler, Ledgers(Quota()))])
        with pytest.raises(WorkerUnavailable, match="the worker of model another serves fake"):
            await model.start()
        await model.close()

    asyncio.run(check())


def test_a_quota_and_the_bound_of_a_tenant_hold_over_the_models_of_a_server(tmp_path: Path) -> None:
    async def check() -> None:
        models_given = f"one={DEMO_MODEL},two={DEMO_MODEL}"
        config = build_config({"model": models_given, "max_pages": 10, "cache_dir": str(tmp_path)}).resolved()
        server = build_server(config, lambda _, model: InProcessClient(FakeModel(model.name), inline=True))
        models = vars(server)["_models"]
        for model in models.values():
            await model.start()
        standing = Standing(Tenant("bounded", max_pages=14))
        one, two = (model.open(1, 1.0, standing) for model in models.values())
        other = models["one"].open(2, 2.0, standing)
        for space in (one, two, other):
            create_queue.issue(space, 1)
        alloc_kvpage.issue(one, 1, 6)
        with pytest.raises(QuotaExceeded, match="6 KV pages held and 5 more asked for, the limit is 10"):
            alloc_kvpage.issue(two, 1, 5)
        alloc_kvpage.issue(two, 1, 4)
        with pytest.raises(QuotaExceeded, match="tenant bounded hold 10 KV pages, and 5 more were asked for"):
            alloc_kvpage.issue(other, 1, 5)
        models["one"].release(1)  # the guest ends its spaces, then releases them
        one.end(Cancelled("it is over"))
        alloc_kvpage.issue(other, 1, 5)
        await server.close()

    asyncio.run(check())
