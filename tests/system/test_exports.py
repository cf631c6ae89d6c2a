"""Pages that inferlets share by name, in the sandbox, on one host and on several."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pie_control.scheduling import SchedulerStatistics
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, run, started
from tests.helpers.tiers import corpus

PREAMBLE = """
from inferlet_sdk import InvalidState, NotFound, traits

TOKENS = list(range(97, 117))

def next_token(queue, pages, position):
    own = traits.alloc_emb(queue, 2)
    traits.embed_txt(queue, [70], [position], own[:1])
    traits.forward(queue, pages, own[:1], (), own[1:])
    return traits.get_next_dist(queue, own[1], 3)
"""
EXPORT = (
    PREAMBLE
    + """
async def main(args):
    queue = traits.create_queue(args.model)
    pages, embeds = traits.alloc_kvpage(queue, 2), traits.alloc_emb(queue, 20)
    traits.embed_txt(queue, TOKENS, range(20), embeds)
    traits.forward(queue, pages, embeds, pages, embeds[-1:])
    await traits.export_kvpage(queue, "prefix", pages, TOKENS)
    try:
        traits.forward(queue, pages, embeds[:1], pages)
    except InvalidState as error:
        refused = error.message
    return [list((await next_token(queue, pages, 20)).tokens), refused]
"""
)
IMPORT = (
    PREAMBLE
    + """
async def main(args):
    queue = traits.create_queue(args.model)
    found = await traits.import_kvpage(queue, "prefix")
    listed = await traits.list_exports(queue, "pre")
    tokens = list((await next_token(queue, found.pages, 20)).tokens)
    held = traits.usage().pages
    traits.import_kvpage(queue, "prefix").cancel()
    await traits.synchronize(queue)
    await traits.unexport_kvpage(queue, "prefix")
    missing = []
    for call in (traits.import_kvpage, traits.unexport_kvpage):
        try:
            await call(queue, "prefix")
        except NotFound as error:
            missing.append(error.message)
    about = [list(found.tokens) == TOKENS, list(found.positions[:20]), found.positions[20:25], found.hidden]
    return [tokens, about, held, [(one.name, one.pages, one.tokens) for one in listed], missing]
"""
)


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_what_an_inferlet_has_left_is_there_for_the_next_one(guest_cache: Path, hosts: int) -> None:
    async def check() -> None:
        client = InProcessClient(FakeModel())
        async with started(guest_cache, client, hosts=hosts) as server, asyncio.timeout(HANG_SECONDS):
            expected, refused = await run(server, EXPORT)
            assert "page" in refused
            assert "is sealed, for it was exported or imported" in refused
            tokens, about, held, listed, missing = await run(server, IMPORT)
            assert tokens == expected
            assert about == [True, list(range(20)), [-1] * 5, []]
            assert held == 2
            assert listed == [["prefix", 2, 20]]
            assert all("there is no export 'prefix' of this tenant" in message for message in missing)
            assert len(missing) == 2

    asyncio.run(check())


LATE = """
from inferlet_sdk import NotFound, traits

async def main(args):
    queue = traits.create_queue(args.model)
    traits.alloc_kvpage(queue, 1)
    await traits.synchronize(queue)
    try:
        await traits.import_kvpage(queue, "prefix")
    except NotFound as error:
        return error.message
"""


def exports_of(server: ServerApi) -> list[tuple[int, int]]:
    """Of each worker: exports, and pages in use."""
    (replicas,) = server.statistics().models.values()
    schedulers: list[SchedulerStatistics] = [replica.scheduler for replica in replicas]
    return [(one.exports, one.pages.used) for one in schedulers]


@pytest.mark.parametrize("hosts", corpus([0, 2], lambda _: "any"))
def test_who_asks_for_an_export_first_goes_to_the_worker_that_has_it(guest_cache: Path, hosts: int) -> None:
    """The other worker has more free pages, so all others go there."""

    async def check() -> None:
        clients = [InProcessClient(FakeModel()) for _ in range(2)]
        async with started(guest_cache, *clients, hosts=hosts, replicas=2) as server, asyncio.timeout(HANG_SECONDS):
            expected, _ = await run(server, EXPORT)
            await until_equal(server, [(1, 2), (0, 0)])
            refused = await run(server, LATE)
            assert "there is no export 'prefix' of this tenant at the worker that serves this inferlet" in refused
            assert "an inferlet whose first command is the import is placed there" in refused
            tokens, *_ = await run(server, IMPORT)
            assert tokens == expected
            await until_equal(server, [(0, 0), (0, 0)])

    asyncio.run(check())


async def until_equal(server: ServerApi, expected: list[tuple[int, int]]) -> None:
    """What an inferlet held comes back a little after its end."""
    while exports_of(server) != expected:
        await asyncio.sleep(0.01)


WAIT_FOR = """
from inferlet_sdk import traits

async def main(args):
    queue = traits.create_queue(args.model)
    await traits.import_kvpage(queue, "prefix")
    await args.send("imported")
    await args.receive()
"""


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_exports_are_gone_with_their_worker_and_everything_else_goes_on(guest_cache: Path, hosts: int) -> None:
    async def check() -> None:
        clients = [InProcessClient(FakeModel()) for _ in range(2)]
        async with started(guest_cache, *clients, hosts=hosts, replicas=2) as server, asyncio.timeout(HANG_SECONDS):
            await run(server, EXPORT)
            _, importer = await launch(server, WAIT_FOR)
            await importer.until_messages(1)
            clients[0].on_lost("it was killed")
            ended = await importer.ended
            assert ended.status == "lost"
            assert "launch again" in (ended.error or "")
            refused = await run(server, LATE)
            assert "there is no export 'prefix' of this tenant" in refused
            await until_equal(server, [(0, 0), (0, 0)])
            while (states := [one.state for one in server.statistics().models["fake"]]) != ["serving"] * 2:
                assert set(states) <= {"serving", "restarting"}
                await asyncio.sleep(0.01)
            expected, _ = await run(server, EXPORT)
            tokens, *_ = await run(server, IMPORT)
            assert tokens == expected
            await until_equal(server, [(0, 0), (0, 0)])

    asyncio.run(check())
