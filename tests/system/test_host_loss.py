"""A server whose inferlets run in processes of their own: what happens when one of these dies."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from pie_control.application.process_link import ProcessLink
from pie_control.engine.app_host import HostStatistics
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, run, started, until_nothing_is_held
from tests.helpers.tiers import corpus
from tests.system.test_hostile_programs import (
    ENDLESS,
    HEADER,
    LIMITS,
    NEIGHBOUR,
    PROGRAMS,
    SHORT_TIME,
    outcome_of,
)

GENERATE = """
from inferlet_sdk import Context, IgnoreStopTokens

async def main(args, seed=0, tokens=400):
    await args.send("begins")
    context = Context(args.model)
    context.fill(f"Once upon a time {seed} ")
    async for piece in context.generate(tokens, stop=IgnoreStopTokens()):
        await args.send(piece)
    return tokens
"""
HOLD = """
from inferlet_sdk import Context, IgnoreStopTokens

async def main(args):
    context = Context(args.model, share=False)  # keys that are shared outlive their maker
    context.fill("Something to remember " * 20)
    await context.generate_until(max_tokens=3)
    await args.send("holds")
    await args.receive()
"""


def link_of(server: ServerApi, host: int) -> ProcessLink:
    (found,) = (each for each in vars(server)["_hosts"].all if each.number == host)
    link = vars(found)["_link"]
    assert isinstance(link, ProcessLink)
    return link


def pid_of(server: ServerApi, host: int) -> int:
    pid = link_of(server, host).pid
    assert pid is not None
    return pid


async def both_serve(server: ServerApi) -> Sequence[HostStatistics]:
    while any(host.state != "serving" for host in server.statistics().hosts):
        await asyncio.sleep(0.01)
    return server.statistics().hosts


def test_what_a_dead_host_held_comes_back_though_its_inferlets_waited(guest_cache: Path) -> None:
    async def check() -> None:
        client = InProcessClient(FakeModel(num_pages=4096))
        async with started(guest_cache, client, hosts=1) as server, asyncio.timeout(HANG_SECONDS):
            holding = [await launch(server, HOLD) for _ in range(3)]
            for _, listener in holding:
                await listener.until_messages(1)
            ((replica,),) = server.statistics().models.values()
            assert replica.scheduler.pages.used > 0
            os.kill(pid_of(server, 1), signal.SIGKILL)
            assert [(await listener.ended).status for _, listener in holding] == ["lost"] * 3
            await until_nothing_is_held(server)
            assert await run(server, GENERATE, {"tokens": 5}) == 5  # a launch waits for the next host

    asyncio.run(check())


def test_a_host_that_dies_again_and_again_is_told_of(guest_cache: Path) -> None:
    async def check() -> None:
        client = InProcessClient(FakeModel(num_pages=4096))
        async with started(guest_cache, client, hosts=2) as server, asyncio.timeout(HANG_SECONDS):
            for _ in range(2):
                await both_serve(server)
                os.kill(pid_of(server, 2), signal.SIGKILL)
                while server.statistics().hosts[1].state == "serving":
                    await asyncio.sleep(0.01)
            (outage,) = server.outages()
            assert re.match(r"application host 2: restarting, tried .*last reason: it was killed by signal 9", outage)
            assert await run(server, GENERATE, {"tokens": 5}) == 5
            await both_serve(server)
            assert server.outages() == ()

    asyncio.run(check())


@pytest.mark.parametrize("endless", corpus([False, True], kind=lambda _: "hosts"), ids=["others", "endless ones"])
def test_hostile_programs_end_as_they_do_without_hosts(endless: bool, guest_cache: Path) -> None:
    """Several at a time on each of two hosts; none of them ends a host."""

    async def check() -> None:
        client = InProcessClient(FakeModel(num_pages=1 << 15))
        places = asyncio.Semaphore(6)
        limits = LIMITS | (SHORT_TIME if endless else {})
        programs = [path for path in PROGRAMS if (path in ENDLESS) is endless]
        async with started(guest_cache, client, hosts=2, **limits) as server, asyncio.timeout(4 * HANG_SECONDS):
            neighbours = [await launch(server, NEIGHBOUR) for _ in range(2)]

            async def judge(program: Path) -> str | None:
                header = HEADER.match(program.read_text())
                assert header
                async with places:
                    ended = await outcome_of(server, program)
                fits = re.fullmatch(header["status"], ended.status) and re.search(
                    header["error"] or "", ended.error or ""
                )
                return None if fits else f"{program.stem}: {ended.status}: {ended.error}"

            wrong = [each for each in await asyncio.gather(*map(judge, programs)) if each]
            assert wrong == []
            assert {entry.host for entry, _ in neighbours} == {1, 2}
            for entry, listener in neighbours:
                await listener.until_messages(len(listener.messages) + 1)
                server.terminate(entry.id, "the test is over")
            await until_nothing_is_held(server)
            assert [host.restarts for host in server.statistics().hosts] == [0, 0]

    asyncio.run(check())
