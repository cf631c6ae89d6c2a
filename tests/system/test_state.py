"""What a server has said survives it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx
import pytest

from pie_control.client import Client
from pie_control.errors import Overloaded
from tests.helpers.guard import HANG_SECONDS
from tests.system.test_survival import WAIT, serving

TALK = """
async def main(args):
    print("so far")
    return {"answer": 42}
"""


def test_a_killed_server_knows_what_it_said_when_it_starts_again(guest_cache: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    options = ("--worker", "paced:0ms", "--state", str(tmp_path / "state"))
    before: list[dict[str, object]] = []

    async def first(url: str) -> None:
        async with Client(url) as client:
            ended = await client.launch(await client.upload(TALK.encode(), "talk"), detached=True)
            assert await ended.result() == {"answer": 42}
            running = await client.launch(await client.upload(WAIT.encode(), "wait"), detached=True)
            before.extend([await client.inferlet(ended.id), await client.inferlet(running.id)])

    async def second(url: str) -> None:
        async with Client(url) as client:
            ended, lost = [await client.inferlet(str(one["id"])) for one in before]
            assert await client.inferlets() == [ended, lost]
            same = ("id", "program", "program_name", "status", "created", "result", "error", "host")
            assert [ended[key] for key in same] == [before[0][key] for key in same]
            assert (lost["status"], lost["error"]) == ("lost", "the server ended before it")
            assert [line.text for line in await client.logs(str(ended["id"]))] == ["so far"]
            assert await (await client.attach(str(ended["id"]))).result() == {"answer": 42}
            running = await client.launch("talk")
            assert running.id not in {ended["id"], lost["id"]}

    for body in (first, second):
        with serving(guest_cache, temporary, *options) as (process, url):
            asyncio.run(asyncio.wait_for(body(url), HANG_SECONDS))
            process.kill()


def test_what_runs_may_end_after_a_sigterm_and_nothing_new_begins(guest_cache: Path, tmp_path: Path) -> None:
    options = ("--worker", "paced:0ms", "--drain-seconds", str(HANG_SECONDS))

    async def check(url: str) -> None:
        async with Client(url) as client, httpx.AsyncClient(base_url=url) as web:
            program = await client.upload(WAIT.encode(), "wait")
            running = await client.launch(program)
            assert await running.receive() == "ready"
            assert (await web.get("/ready")).status_code == 200
            process.send_signal(signal.SIGTERM)
            while (await web.get("/ready")).status_code != 503:
                await asyncio.sleep(0.01)
            with pytest.raises(Overloaded, match="takes no new work"):
                await client.launch(program)
            await running.send("bye")
            assert await running.result() == "bye"

    with serving(guest_cache, tmp_path, *options) as (process, url):
        asyncio.run(asyncio.wait_for(check(url), HANG_SECONDS))
        assert process.wait(HANG_SECONDS) == 128 + signal.SIGTERM
