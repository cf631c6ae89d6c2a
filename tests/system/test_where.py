"""What an inferlet waits for, and where its tasks are: what whoever asks is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pie_control.inferlets import runner
from pie_control.inferlets.events import WHERE
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, started
from tests.helpers.tiers import corpus

IMPORTS = "import asyncio\nfrom inferlet_sdk import *\n"
WAITS = {
    "a message of its client": "    await args.receive()\n",
    "a message to topic 'news'": "    with subscribe('news') as news:\n        async for _ in news:\n            1\n",
    "a time to pass": "    await asyncio.sleep(1000)\n",
    "the end of child i2": "    await launch(role='child')\n",
    "a message of its client or a time to pass": "    await gather(args.receive(), asyncio.sleep(1000))\n",
}


def check(cache: Path, test: Callable[[ServerApi], Awaitable[None]], hosts: int = 0) -> None:
    async def main() -> None:
        async with started(cache, InProcessClient(FakeModel()), hosts=hosts) as server:
            async with asyncio.timeout(HANG_SECONDS):
                await test(server)

    asyncio.run(main())


def program(wait: str) -> str:
    return (
        IMPORTS
        + "async def main(args, role=''):\n    if role:\n        await args.receive()\n    await inner(args)\n"
        + f"async def inner(args):\n{wait}"
    )


@pytest.mark.parametrize("hosts", corpus([1, 0], lambda _: "any"))
def test_it_is_told_what_an_inferlet_waits_for_since_when_and_where(guest_cache: Path, hosts: int) -> None:
    async def test(server: ServerApi) -> None:
        for what, wait in WAITS.items():
            entry, heard = await launch(server, program(wait))
            wanted = what.replace("i2", f"i{entry.number + 1}")
            while (info := await server.look_at(entry.id)).waits_for != wanted:
                assert info.status in ("created", "running"), info
                await asyncio.sleep(0.005)
            assert info.waits_since is not None
            assert entry.created - 1 < info.waits_since <= time.time() + 0.001, "rounded"
            assert {each.id: each.waits_for for each in await server.look_at_all()}[entry.id] == wanted
            assert entry.info().waits_for is None, "a host is asked only by who looks"
            assert not heard.lines
            await server.look_at(entry.id, stack=True)
            while not heard.lines and not heard.ended.done():
                await asyncio.sleep(0.005)
            assert heard.lines[0].startswith(WHERE)
            assert "main (line 6 of " in heard.lines[0]
            assert "inner (line " in heard.lines[0]
            assert (await server.look_at(entry.id)).waits_for == wanted, "it waits on"
            server.terminate(entry.id, "over")
            await heard.ended
            info = await server.look_at(entry.id)
            assert (info.status, info.waits_for, info.waits_since) == ("terminated", None, None)

    check(guest_cache, test, hosts)


def test_one_that_was_asked_goes_on_as_before(guest_cache: Path) -> None:
    async def test(server: ServerApi) -> None:
        entry, heard = await launch(server, IMPORTS + "async def main(args):\n    return await args.receive()\n")
        for number in range(1, 4):
            while (info := await server.look_at(entry.id)).waits_for is None and info.ended is None:
                await asyncio.sleep(0.005)
            await server.look_at(entry.id, stack=True)
            while len(heard.lines) < number and not heard.ended.done():
                await asyncio.sleep(0.005)
        entry.send("x")
        assert (await heard.ended).result == '"x"'

    check(guest_cache, test)


def test_a_program_that_computes_without_a_wait_is_told_so_once(
    guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LONG_SECONDS", 0.05)

    async def test(server: ServerApi) -> None:
        entry, heard = await launch(server, "async def main(args):\n    while True:\n        pass\n")
        while not heard.lines and not heard.ended.done():
            await asyncio.sleep(0.005)
        assert (await server.look_at(entry.id)).waits_for is None
        while entry.cpu_seconds < 0.2:
            await server.look_at(entry.id)
            await asyncio.sleep(0.005)
        assert server.meter.usage.cpu_seconds == entry.cpu_seconds  # it counts for its tenant, though it runs
        (line,) = heard.lines
        assert line.startswith("warning: it has computed for 0.05 s without a wait")

    check(guest_cache, test)
