"""Inferlets that send faster than their client reads, through guest, server and socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pie_control.http_server.listening import bind
from pie_control.http_server.server import HttpServer
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import started
from tests.helpers.sessions import open_session, until, until_it_waits

PIECE = 100_000
COUNT = 200

PLAIN = f"def main(args):\n    for n in range({COUNT}): args.send(f'{{n:09}}' + 'x' * {PIECE - 9})\n    return 'done'\n"
AWAITED = PLAIN.replace("def main", "async def main").replace("args.send", "await args.send")
NOT_AWAITED = PLAIN.replace("def main", "async def main")


@asynccontextmanager
async def serving(cache_dir: Path, **settings: Any) -> AsyncIterator[tuple[ServerApi, str]]:
    model = InProcessClient(FakeModel())
    async with started(cache_dir, model, warm_pool=0, **settings) as api, asyncio.timeout(HANG_SECONDS):
        server = HttpServer(api, bind("127.0.0.1", 0), api.config)
        await server.start()
        try:
            yield api, server.url
        finally:
            await api.close()
            await server.close()


def texts_of(messages: list[dict[str, Any]], inferlet: str) -> list[str]:
    return [each["text"] for each in messages if each["type"] == "message" and each["inferlet"] == inferlet]


@pytest.mark.parametrize("program", [PLAIN, AWAITED, NOT_AWAITED], ids=["plain", "awaited", "not awaited"])
def test_messages_faster_than_the_link_arrive_completely(program: str, guest_cache: Path) -> None:
    async def check() -> None:
        async with serving(guest_cache) as (api, url), open_session(url, max_size=None, max_queue=1) as socket:
            await api.upload(program.encode(), "flood")
            await socket.send(json.dumps({"type": "launch", "id": 1, "program": "flood"}))
            while not api.inferlets():
                await asyncio.sleep(0.01)
            await until_it_waits(api.inferlet("i1").outbox)
            messages = await until(socket, "ended")
            assert [int(text[:9]) for text in texts_of(messages, "i1")] == list(range(COUNT))
            assert (messages[-1]["status"], messages[-1]["result"]) == ("finished", '"done"')

    asyncio.run(check())


@pytest.mark.parametrize("count", [COUNT, 20], ids=["more than may wait", "all of it waits"])
def test_a_client_that_reads_nothing_of_its_answer_keeps_no_place_in_the_line(count: int, guest_cache: Path) -> None:
    async def check() -> None:
        async with (
            serving(guest_cache, max_serving=1, max_wait_seconds=HANG_SECONDS / 2) as (api, url),
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=HANG_SECONDS) as client,
        ):
            await api.upload(AWAITED.replace(str(COUNT), str(count)).encode(), "flood")
            await api.upload(b"async def main(args): return 1", "quick")
            body = {"model": f"{api.models()[0].name}+flood", "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as unread:
                assert unread.status_code == 200
                quick = await client.post("/v1/completions", json={"model": f"{api.models()[0].name}+quick"})
                assert (quick.status_code, quick.text) == (200, "1")
                texts = [line async for line in unread.aiter_lines() if line.startswith("data: 0")]
            assert [int(text[6:15]) for text in texts] == list(range(count))

    asyncio.run(check())
