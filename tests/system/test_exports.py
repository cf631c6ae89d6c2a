"""Pages that inferlets share by name, in the sandbox, on one host and on several."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import run, started

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


@pytest.mark.parametrize("hosts", [0, 2])
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
