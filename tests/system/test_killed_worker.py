"""A worker process that is killed while inferlets export, import and decode: what each of them is told, and that the
worker that takes its place serves anew."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from pie_control.server_api import ServerApi
from testing.checkpoints import make_checkpoint
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, launch, run, started, worker_pids
from tests.helpers.tiers import corpus
from tests.system.test_exports import EXPORT, IMPORT, LATE, WAIT_FOR, until_equal
from tests.system.test_survival import WAIT

EXPORT_AND_STAY = """
from inferlet_sdk import traits

async def main(args, name):
    queue = traits.create_queue(args.model)
    pages, embeds = traits.alloc_kvpage(queue, 2), traits.alloc_emb(queue, 20)
    traits.embed_txt(queue, range(97, 117), range(20), embeds)
    traits.forward(queue, pages, embeds, pages)
    await traits.export_kvpage(queue, name, pages)
    await args.send("exported")
    await args.receive()
"""
DECODE = """
from inferlet_sdk import Context, IgnoreStopTokens

async def main(args):
    context = Context(args.model, share=False)
    context.fill("Once upon a time ")
    async for piece in context.generate(10_000, stop=IgnoreStopTokens()):
        await args.send(piece)
"""
CATCH = """
from inferlet_sdk import traits

async def main(args):
    queue = traits.create_queue(args.model)
    found = await traits.import_kvpage(queue, "prefix")
    await args.send("imported")
    embeds = traits.alloc_emb(queue, 2)
    while True:
        traits.embed_txt(queue, [70], [20], embeds[:1])
        traits.forward(queue, found.pages, embeds[:1], (), embeds[1:])
        await traits.get_next_dist(queue, embeds[1], 3)
"""


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_a_worker_is_killed_while_exports_and_importers_exist(hosts: int, guest_cache: Path, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")

    async def check() -> None:
        options = {"model": [f"small={folder}"], "hosts": hosts, "pages": 200, "max_context": 400}
        async with started(guest_cache, **options) as server, asyncio.timeout(HANG_SECONDS):
            expected, _ = await run(server, EXPORT)
            holding = [
                await launch(server, WAIT_FOR),
                await launch(server, EXPORT_AND_STAY, {"name": "own"}),
                await launch(server, CATCH),
                await launch(server, DECODE),
            ]
            idle, waiting = await launch(server, WAIT)
            for listener in (*(listener for _, listener in holding), waiting):
                await listener.until_messages(1)
            (replica,) = server.statistics().models["small"]
            assert replica.scheduler.exports >= 2
            (pid,) = worker_pids(server, "small")
            os.kill(pid, signal.SIGKILL)
            for _, listener in holding:
                await told_of_the_loss(listener)
            refused = await run(server, LATE)
            assert "there is no export 'prefix' of this tenant" in refused
            await until_equal(server, [(0, 0)])
            assert await serves_anew(server) == expected
            idle.send("an inferlet that held nothing at the worker goes on")
            assert (await waiting.ended).status == "finished"
            (replica,) = server.statistics().models["small"]
            assert (replica.restarts, replica.scheduler.inferlets) == (1, 0)
            assert worker_pids(server, "small") != [pid]

    asyncio.run(check())


async def told_of_the_loss(listener: Listener) -> None:
    ended = await listener.ended
    assert ended.status == "lost", ended.error
    assert "worker" in (ended.error or "")
    assert "the worker was killed by signal 9" in (ended.error or "")
    assert "launch again" in (ended.error or "")


async def serves_anew(server: ServerApi) -> list[int]:
    """What an importer is told by the next worker; leaves nothing there."""
    expected, _ = await run(server, EXPORT)
    tokens, *_ = await run(server, IMPORT)
    assert tokens == expected
    await until_equal(server, [(0, 0)])
    return list(expected)
