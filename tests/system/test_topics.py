"""Inferlets that talk over topics: on one host and on several, with one that is slow, and with one that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, run, started
from tests.helpers.tiers import corpus
from tests.system.test_host_loss import pid_of

IMPORTS = "import asyncio\nfrom inferlet_sdk import *\n"

SWARM = (
    IMPORTS
    + """
async def main(args, size=0, rounds=0):
    me = args.environment["inferlet"]
    with subscribe("swarm") as swarm:
        await args.send("ready")
        await args.receive()
        async def say():
            for number in range(rounds):
                await broadcast("swarm", f"{me} {number}")
        talk = asyncio.ensure_future(say())
        heard = [await swarm.next() for _ in range(size * rounds)]
        await talk
    assert all(message.text.split()[0] == message.sender for message in heard)
    return [message.text for message in heard]
"""
)


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_all_hear_everything_in_the_same_order(guest_cache: Path, hosts: int) -> None:
    async def main() -> None:
        client = InProcessClient(FakeModel())
        async with started(guest_cache, client, hosts=hosts) as server, asyncio.timeout(HANG_SECONDS):
            swarm = [await launch(server, SWARM, {"size": 6, "rounds": 20}) for _ in range(6)]
            for _, listener in swarm:
                await listener.until_messages(1)
            for entry, _ in swarm:
                entry.send("go")
            results = {(await listener.ended).result for _, listener in swarm}
            (result,) = results
            assert result is not None
            for entry, _ in swarm:  # each in the order in which it spoke
                assert [f"{entry.id} {number}" for number in range(20)] == [
                    text for text in json.loads(result) if text.startswith(entry.id + " ")
                ]
            assert len(vars(server)["_hosts"].topics) == 0

    asyncio.run(main())


LISTENER = (
    IMPORTS
    + """
async def main(args):
    news = subscribe("news")
    await args.send("ready")
    await args.receive()
    count = 0
    async for message in news:
        count += len(message.text)
        if message.text.endswith("last"):
            return count
"""
)
PUBLISHER = (
    IMPORTS
    + """
async def main(args, count=0):
    reached = []
    for number in range(count):
        reached.append(await broadcast("news", "x" * 200_000))
        await args.send(str(number))
    return [reached, await broadcast("news", "last")]
"""
)


@pytest.mark.parametrize("hosts", corpus([0, 2], lambda _: "any"))
def test_a_publisher_waits_for_a_slow_subscriber_and_nothing_is_lost(guest_cache: Path, hosts: int) -> None:
    async def main() -> None:
        client = InProcessClient(FakeModel())
        async with started(guest_cache, client, hosts=hosts) as server, asyncio.timeout(HANG_SECONDS):
            slow, heard = await launch(server, LISTENER)
            await heard.until_messages(1)
            _, said = await launch(server, PUBLISHER, {"count": 20})
            await said.until_messages(5)  # 1 MB is kept for the subscriber
            await asyncio.sleep(0.3)
            assert len(said.messages) < 8
            slow.send("read")
            assert (await heard.ended).result == str(20 * 200_000 + 4)
            assert (await said.ended).result == str([[1] * 20, 1])

    asyncio.run(main())


def test_a_publisher_goes_on_when_the_host_of_a_slow_subscriber_dies(guest_cache: Path) -> None:
    async def main() -> None:
        client = InProcessClient(FakeModel())
        async with started(guest_cache, client, hosts=2) as server, asyncio.timeout(HANG_SECONDS):
            slow, heard = await launch(server, LISTENER)
            await heard.until_messages(1)
            publisher, said = await launch(server, PUBLISHER, {"count": 20})
            assert slow.host != publisher.host
            await said.until_messages(5)
            os.kill(pid_of(server, slow.host), signal.SIGKILL)
            assert (await heard.ended).status == "lost"
            ended = await said.ended
            assert ended.status == "finished"
            assert (ended.result or "").endswith("], 0]")

    asyncio.run(main())


def test_subscribing_comes_before_all_that_is_said_later(guest_cache: Path) -> None:
    """Whoever hears that an inferlet is ready reaches it, on whatever host."""
    source = (
        IMPORTS
        + """
async def main(args, listen=False):
    if not listen:
        return await broadcast("t", "hello")
    with subscribe("t") as queue:
        await args.send("ready")
        return (await queue.next()).text
"""
    )

    async def main() -> None:
        client = InProcessClient(FakeModel())
        async with started(guest_cache, client, hosts=2) as server, asyncio.timeout(HANG_SECONDS):
            for _ in range(5):
                _, listener = await launch(server, source, {"listen": True})
                await listener.until_messages(1)
                assert await run(server, source) == 1
                assert (await listener.ended).result == '"hello"'

    asyncio.run(main())


def test_futures_are_cancelled_and_subscriptions_closed(guest_cache: Path) -> None:
    source = (
        IMPORTS
        + """
async def main(args):
    queue = subscribe("t")
    waits = queue.next()
    waits.cancel()
    try:
        async with asyncio.timeout(0.01):
            await queue.next()
    except TimeoutError:
        pass
    broadcast("t", "one").cancel()
    await broadcast("t", "two")
    texts = [(await queue.next()).text, (await queue.next()).text]
    dropped = subscribe("u")
    del dropped
    await asyncio.sleep(0)
    pending = asyncio.ensure_future(collect(queue))
    await asyncio.sleep(0.01)
    queue.close()
    return [texts, await pending, await broadcast("u", "x"), await broadcast("t", "x"), traits.usage().futures]

async def collect(queue):
    return [message.text async for message in queue]
"""
    )

    async def main() -> None:
        async with started(guest_cache, InProcessClient(FakeModel())) as server, asyncio.timeout(HANG_SECONDS):
            assert await run(server, source) == [["one", "two"], [], 0, 0, 0]

    asyncio.run(main())
