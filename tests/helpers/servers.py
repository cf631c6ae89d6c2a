"""Running inferlets in a server of the test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from pie_control.config import ModelPath, ServerConfig, build_config
from pie_control.inference_client.interface import InferenceClient
from pie_control.inferlets.events import Ended, Event, LogLine, Message
from pie_control.inferlets.inferlet import Inferlet
from pie_control.inferlets.manager import InferletManager
from pie_control.registry.entry import Entry
from pie_control.runtime import build_server
from pie_control.server_api import ServerApi
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS


class Listener:
    """Keeps the events of an inferlet."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self.messages: list[str] = []
        self.lines: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        match event:
            case Message(text):
                self.messages.append(text)
            case LogLine(text=text):
                self.lines.append(text)
            case Ended() if not self.ended.done():
                self.ended.set_result(event)
        self._news.set()

    async def until_messages(self, count: int) -> None:
        """Waits for `count` messages; fails if the inferlet ends before."""
        while len(self.messages) < count:
            assert not self.ended.done(), self.ended.result()
            self._news.clear()
            await self._news.wait()


def cache_with_guest(folder: Path, guest_cache: Path) -> Path:
    """A cache folder of its own, without programs, which shares the compiled Python guest."""
    (folder / "guest").symlink_to(guest_cache / "guest")
    return folder


@asynccontextmanager
async def started(cache_dir: Path, *clients: InferenceClient, **options: object) -> AsyncIterator[ServerApi]:
    """A started server; its workers are processes on the demo model unless clients are given, one for each."""
    if clients and isinstance(clients[0], InProcessClient):
        options.setdefault("model", [f"{clients[0].model_name}=demo"])
    given_options = {
        "warm_pool": 2,
        "max_programs": 100_000,  # the folder is kept from run to run
        "compile_seconds": HANG_SECONDS,
        **options,
    }
    config = build_config({"cache_dir": str(cache_dir), **given_options}).resolved()
    given = iter(clients)

    def make_client(_config: ServerConfig, _model: ModelPath) -> InferenceClient:
        return next(given)

    server = build_server(config, make_client if clients else None)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def launch(
    server: ServerApi,
    source: str | bytes,
    kwargs: Mapping[str, Any] | None = None,
    blobs: Mapping[str, bytes] | None = None,
) -> tuple[Entry, Listener]:
    """Uploads and launches a Python program, or a component, with blobs."""
    listener = Listener()
    data = source.encode() if isinstance(source, str) else source
    program = (await server.upload(data, "test")).program
    environment = {"kwargs": json.dumps(kwargs)} if kwargs else {}
    uploaded = {name: await server.upload_blob(data) for name, data in (blobs or {}).items()}
    return await server.launch(program, environment=environment, blobs=uploaded, listener=listener), listener


def hosted(server: ServerApi, inferlet: Entry) -> Inferlet:
    """A running inferlet itself, in a server whose host is in this process."""
    return cast(Inferlet, inferlets_of(server, inferlet.host).try_running(inferlet.number))


def inferlets_of(server: ServerApi, host: int) -> InferletManager:
    """The inferlets of a host that is in this process."""
    found: InferletManager = vars(vars(vars(server)["_hosts"].all[host])["_link"])["_host"]._inferlets
    return found


def worker_pids(server: ServerApi, model: str) -> list[int]:
    """Processes of a model's workers."""
    clients = [vars(replica)["_client"] for replica in vars(server)["_models"][model].replicas]
    return [vars(vars(client)["_connector"])["_process"].pid for client in clients]


def host_pids(server: ServerApi) -> list[int]:
    """Processes of the hosts."""
    return [vars(host)["_link"].pid for host in vars(server)["_hosts"].all]


async def until_nothing_is_held(server: ServerApi) -> None:
    """Waits until no model has something of an inferlet: a wave that is under way uses what was given back."""
    while any(
        one.scheduler.inferlets or one.scheduler.pages.used or one.scheduler.embeds.used
        for replicas in server.statistics().models.values()
        for one in replicas
    ):
        await asyncio.sleep(0.01)


async def run(
    server: ServerApi,
    source: str | bytes,
    kwargs: Mapping[str, Any] | None = None,
    blobs: Mapping[str, bytes] | None = None,
) -> Any:
    """Result of a program that must finish."""
    _, listener = await launch(server, source, kwargs, blobs)
    ended = await listener.ended
    assert ended.status == "finished", ended.error
    return json.loads(ended.result) if ended.result is not None else None
