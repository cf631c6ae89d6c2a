"""Adapters of a model with several workers: on all of them or on none, and there again after a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pie_control.engine.model import Model
from pie_control.engine.replica import Replica
from pie_control.errors import BadAdapter, BadRequest, Conflict, UnknownName, WorkerUnavailable
from pie_control.scheduling import Scheduler
from pie_inference.protocol import AdapterLoaded, DropAdapter, LoadAdapter
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.played_client import PlayedClient


class Recorded(PlayedClient):
    """Remembers what it was told of adapters; `refuses` is what it says to the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int]] = []
        self.refuses: str | None = None
        self.lost: Exception | None = None
        self.is_late = False
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.may_restart.set()

    async def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        await self.may_load.wait()
        self.told.append(("load", message.number))
        if self.lost is not None:
            self.on_lost("it died")
            raise self.lost
        if self.is_late:
            raise WorkerUnavailable("the worker did not load the adapter")
        if self.refuses is not None:
            return AdapterLoaded(message.number, error=self.refuses)
        return await super().load_adapter(message)

    def drop_adapter(self, message: DropAdapter) -> None:
        self.told.append(("drop", message.number))
        super().drop_adapter(message)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.clients = [Recorded(), Recorded()]
        self.model = Model("fake", [Replica(client, Scheduler) for client in self.clients])
        self.adapters = self.model.adapters
        self.folder = folder
        (folder / "adapter_config.json").write_text(json.dumps({"bytes": 70}))

    async def load(self, name: str) -> int:
        return (await self.adapters.load(name, str(self.folder))).bytes

    def told(self) -> list[list[tuple[str, int]]]:
        told = [client.told.copy() for client in self.clients]
        for client in self.clients:
            client.told.clear()
        return told

    async def until_serving(self) -> None:
        while not all(replica.life.serves for replica in self.model.replicas):
            await asyncio.sleep(0)


def play(folder: Path, body: Callable[[Scene], Awaitable[None]]) -> None:
    async def check() -> None:
        scene = Scene(folder)
        await scene.model.start()
        await asyncio.wait_for(body(scene), HANG_SECONDS)
        await scene.model.close()

    asyncio.run(check())


def test_all_workers_have_an_adapter_under_one_number(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        assert [await scene.load(name) for name in ("poet", "painter")] == [70, 70]
        assert scene.told() == [[("load", 0), ("load", 1)]] * 2
        assert scene.adapters.numbers() == {"poet": 0, "painter": 1}
        assert scene.adapters.drop("poet").folder == tmp_path.name
        assert await scene.load("poet") == 70
        assert scene.told() == [[("drop", 0), ("load", 2)]] * 2
        assert [info.name for info in scene.adapters.all()] == ["painter", "poet"]

    play(tmp_path, body)


def test_what_one_worker_cannot_load_is_on_none(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        scene.clients[1].refuses = "no room"
        with pytest.raises(BadAdapter, match="no room"):
            await scene.load("poet")
        assert scene.told() == [[("load", 0), ("drop", 0)]] * 2
        assert scene.adapters.numbers() == {}
        scene.clients[1].refuses = None
        assert await scene.load("poet") == 70

    play(tmp_path, body)


def test_what_one_worker_loads_too_late_is_on_none(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        scene.clients[1].is_late = True
        with pytest.raises(WorkerUnavailable, match="did not load the adapter"):
            await scene.load("poet")
        assert scene.told() == [[("load", 0), ("drop", 0)]] * 2
        assert scene.adapters.numbers() == {}

    play(tmp_path, body)


def test_one_whose_load_is_cancelled_stays_on_no_worker(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        scene.clients[1].may_load.clear()
        loading = asyncio.ensure_future(scene.load("poet"))
        while not scene.clients[0].told:
            await asyncio.sleep(0)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert scene.told() == [[("load", 0), ("drop", 0)], [("drop", 0)]]

    play(tmp_path, body)


def test_names_are_checked(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        for name in ("", "a/b", "x" * 65, "a b", "<|x|>"):
            with pytest.raises(BadRequest, match="an adapter is called by 1 to 64 letters"):
                await scene.load(name)
        await scene.load("poet")
        with pytest.raises(Conflict, match="model fake has an adapter 'poet' already: drop it first"):
            await scene.load("poet")
        with pytest.raises(UnknownName, match="model fake has no adapter 'painter'; it has: poet"):
            scene.adapters.drop("painter")
        assert scene.told() == [[("load", 0)]] * 2

    play(tmp_path, body)


def test_a_worker_that_starts_again_has_all_adapters_before_it_serves(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        for name in ("poet", "painter", "dropped"):
            await scene.load(name)
        scene.adapters.drop("dropped")
        scene.told()
        first = scene.clients[0]
        first.may_load.clear()
        first.on_lost("gone")
        for _ in range(10):
            await asyncio.sleep(0)
        assert not scene.model.replicas[0].life.serves
        first.may_load.set()
        await scene.until_serving()
        assert scene.told() == [[("load", 0), ("load", 1)], []]

    play(tmp_path, body)


def test_an_adapter_that_is_dropped_while_it_is_brought_back_is_gone(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        await scene.load("poet")
        scene.told()
        scene.clients[0].may_load.clear()
        scene.clients[0].on_lost("gone")
        for _ in range(10):
            await asyncio.sleep(0)
        scene.adapters.drop("poet")
        scene.clients[0].may_load.set()
        await scene.until_serving()
        assert scene.told()[0][-2:] == [("load", 0), ("drop", 0)]

    play(tmp_path, body)


def test_what_cannot_be_brought_back_is_told_and_keeps_nobody_from_serving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(scene: Scene) -> None:
        await scene.load("poet")
        (tmp_path / "adapter_config.json").unlink()
        scene.clients[0].on_lost("gone")
        await scene.until_serving()

    play(tmp_path, body)
    assert "a worker of model fake serves without adapter poet" in caplog.text


def test_a_worker_that_is_lost_meanwhile_gets_the_adapter_when_it_is_back(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        first = scene.clients[0]
        first.lost = WorkerUnavailable("it died")
        first.may_restart.clear()
        assert await scene.load("poet") == 70
        assert scene.adapters.numbers() == {"poet": 0}
        first.lost = None
        first.may_restart.set()
        await scene.until_serving()
        assert scene.told()[0] == [("load", 0), ("load", 0)]

    play(tmp_path, body)


def test_without_a_worker_nothing_is_loaded(tmp_path: Path) -> None:
    async def body(scene: Scene) -> None:
        for client in scene.clients:
            client.may_restart.clear()
            client.lost = WorkerUnavailable("it died")
        with pytest.raises(WorkerUnavailable, match="it died"):
            await scene.load("poet")
        with pytest.raises(WorkerUnavailable, match="model fake has no worker now: try again later"):
            await scene.load("poet")
        assert scene.adapters.numbers() == {}

    play(tmp_path, body)
