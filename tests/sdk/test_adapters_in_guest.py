"""Contexts with adapters, in the sandbox: each has the tokens that it has alone, whoever loads and drops meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, run, started
from tests.helpers.tiers import corpus

TEXTS = """
import asyncio
from inferlet_sdk import *

def second(dist):
    return dist.tokens[1]

WAYS = {
    "run": dict(),
    "step by step": dict(run_ahead=False),
    "sampled": dict(sampler=Sampler(temperature=1.0, seed=5)),
    "penalized": dict(sampler=Sampler(seed=5, repetition_penalty=1.3, window=8)),
    "own sampler": dict(sampler=DistSampler(second, k=3)),
}

async def text_of(model, adapter, way):
    async with Context(model, adapter=adapter).fill("Once upon a time there was a king ") as ctx:
        child = ctx.fork()
        await ctx.generate_until(IgnoreStopTokens(), 20, **WAYS[way])
        await child.fill("who ").generate_until(IgnoreStopTokens(), 20, **WAYS[way])
        dist = await child.next_dist(5)
        scores = await child.score("abc")
        tokens = ctx.tokens, child.tokens, dist.tokens, scores
        child.close()
        return [list(part) for part in tokens]

async def main(args, adapters):
    listed = traits.available_adapters(args.model)
    wanted = [(adapter, way) for way in WAYS for adapter in adapters]
    alone = [await text_of(args.model, *one) for one in wanted]
    together = await gather(*(text_of(args.model, *one) for one in wanted))
    different = {way: len({str(found[0]) for (_, w), found in zip(wanted, alone) if w == way}) for way in WAYS}
    while traits.usage().pages:
        await asyncio.sleep(0.01)  # until what has been given back has run
    return [listed, alone == together, different]
"""

USES = """
from inferlet_sdk import *

async def main(args, adapter, tokens=400):
    ctx = Context(args.model, adapter=adapter).fill("Once upon a time ")
    begin, begun = len(ctx), False
    try:
        async for piece in ctx.generate(tokens, stop=IgnoreStopTokens()):
            if not begun:
                begun = True
                await args.send("begun")
                await args.receive()
    except PieError as error:
        return [type(error).__name__, str(error)]
    return len(ctx) - begin
"""

KEPT = """
from inferlet_sdk import *

async def main(args, adapter=None, share=True):
    async with Context(args.model, adapter=adapter, share=share) as ctx:
        ctx.fill("Once upon a time there was a king. " * 20)
        text = await ctx.generate_until(IgnoreStopTokens(), 8)
        if share:
            await ctx.export("king")
        return text
"""

OPENED = """
from inferlet_sdk import *

async def main(args, adapter=None):
    try:
        async with await Context.open("king", args.model, adapter=adapter) as ctx:
            return await ctx.generate_until(IgnoreStopTokens(), 8)
    except PieError as error:
        return [type(error).__name__, str(error)]
"""

COMBINED = """
from inferlet_sdk import *
from inferlet_sdk import bindings

MASK = [range(0, 2), range(1, 4)]

async def read(args, adapter, mask):
    queue = traits.create_queue(args.model)
    inputs, output, pages = traits.alloc_emb(queue, 40), traits.alloc_emb(queue), traits.alloc_kvpage(queue, 6)
    sampler = traits.create_sampler(temperature=0.0)
    how = dict(adapter=adapter, mask=mask)

    def fill(count, start):
        traits.embed_txt(queue, range(60, 60 + count), range(start, start + count), inputs[:count])
        return inputs[:count]

    traits.forward(queue, pages, fill(2, 0), pages, output, adapter=adapter)
    told = [(await traits.get_next_dist(queue, output, 3)).tokens]
    traits.forward(queue, pages, fill(2, 2), pages, output, **how)
    told.append((await traits.get_next_dist(queue, output, 3)).tokens)
    wide = [range(0, 5), range(1, 6)] if mask else None
    scores = traits.forward_with_scores(queue, pages, fill(2, 4), pages, output, adapter=adapter, mask=wide)
    told.append([len(await scores), (await traits.get_next_dist(queue, output, 3)).tokens])
    step = ([70, 71], [6, 7], inputs[:2], pages, pages, output)
    how["mask"] = [range(1, 7), range(1, 8)] if mask else None
    told.append((await traits.forward_with_dist(queue, *step, 3, **how)).tokens)
    try:
        told.append(traits.continue_with_dist(queue, 72).tokens)
    except InvalidState as error:
        told.append("no step" in str(error) or str(error))
        traits.forward_with_dist(queue, [72], [8], inputs[:1], pages, pages, output, 3, adapter=adapter).cancel()
    token = traits.forward_with_sampling(queue, [73], [9], inputs[:1], pages, pages, output, sampler, adapter=adapter)
    traits.embed_txt(queue, [token], [10], inputs[:1])
    traits.forward(queue, pages, inputs[:1], pages, output, adapter=adapter)
    told += [await token, await traits.sample(queue, output, sampler)]
    await traits.synchronize(queue)
    traits.destroy_queue(queue)
    return told

async def main(args):
    queue = traits.create_queue(args.model)
    wanted = [(adapter, mask) for adapter in ("", "poet", "painter") for mask in (None, MASK)]
    found = {f"{adapter} {bool(mask)}": await read(args, adapter, mask) for adapter, mask in wanted}
    refused = []
    lists = [], [0, 1], [], [], [], [], []
    several, outputless = ("", 0, 3, 1.0, True), ("", 0, 3, 1.0, False)
    for asked in (("nobody", 0, 0, 0.0, False), ("", 999, 0, 0.0, False), several, outputless):
        try:
            bindings.forward.forward(queue, *lists, *asked)
        except bindings.HostError as error:
            refused.append(error.value.code)
    for wrong in (dict(adapter=7), dict(mask=[7]), dict(mask=7)):
        try:
            traits.forward(queue, (), [0], **wrong)
        except TypeError as error:
            refused.append(str(error).partition(":")[0])
    return [found, refused, traits.usage().futures]
"""

REFUSED = """
from inferlet_sdk import *

async def main(args):
    told = []
    for adapter in ("nobody", "", 7):
        try:
            await Context(args.model, adapter=adapter).fill("a").generate_until(max_tokens=1)
            told.append("served")
        except (PieError, TypeError) as error:
            told.append(f"{type(error).__name__}: {error}")
    return told
"""


def write(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        (folder / name).mkdir()
        (folder / name / "adapter_config.json").write_text(json.dumps({"name": name}))


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_contexts_with_adapters_have_their_tokens_beside_others(guest_cache: Path, tmp_path: Path, hosts: int) -> None:
    async def check() -> None:
        write(tmp_path, ("poet", "painter"))
        given = [f"{name}={tmp_path / name}" for name in ("poet", "painter")]
        client = InProcessClient(FakeModel(num_pages=4096))
        async with started(guest_cache, client, hosts=hosts, adapter=given, warm_pool=0) as server:
            async with asyncio.timeout(HANG_SECONDS):
                found = await run(server, TEXTS, {"adapters": ["poet", None, "painter"]})
        listed, same, different = found
        assert listed == ["poet", "painter"]
        assert same
        assert set(different.values()) == {3}

    asyncio.run(check())


@pytest.mark.parametrize("hosts", corpus([0, 2], lambda _: "any"))
def test_a_drop_ends_what_uses_the_adapter_and_nothing_else(guest_cache: Path, tmp_path: Path, hosts: int) -> None:
    async def check() -> None:
        write(tmp_path, ("poet", "painter"))
        client = InProcessClient(FakeModel(num_pages=4096))
        settings: dict[str, Any] = {"hosts": hosts, "adapter_dir": str(tmp_path), "warm_pool": 0}
        async with started(guest_cache, client, **settings) as server, asyncio.timeout(HANG_SECONDS):
            for name in ("poet", "painter"):
                await server.adapters.load(name, name)
            users = [await launch(server, USES, {"adapter": name}) for name in ("poet", "painter", None)]
            for _, listener in users:
                await listener.until_messages(1)
            server.adapters.drop("poet")
            for entry, _ in users:
                entry.send("go on")
            ended = [json.loads((await listener.ended).result or "null") for _, listener in users]
            kind, message = ended[0]
            assert (kind, "adapter" in message) in {("WorkerFailed", True), ("NotFound", True)}
            assert ended[1:] == [400, 400]
            again = await run(server, REFUSED)
            assert again[0].startswith("NotFound: model fake has no adapter 'nobody'; it has: painter")
            assert again[1] == "served"
            assert again[2].startswith("TypeError: adapter")

    asyncio.run(check())


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_keys_are_shared_only_with_the_adapter_that_made_them(guest_cache: Path, tmp_path: Path, hosts: int) -> None:
    async def check() -> None:
        write(tmp_path, ("poet", "painter"))
        settings: dict[str, Any] = {"hosts": hosts, "adapter_dir": str(tmp_path), "warm_pool": 0}
        client = InProcessClient(FakeModel(num_pages=4096))
        async with started(guest_cache, client, **settings) as server, asyncio.timeout(HANG_SECONDS):
            await server.adapters.load("poet", "poet")
            made = {name: await run(server, KEPT, {"adapter": name}) for name in (None, "poet")}
            assert made[None] != made["poet"]
            for name, text in made.items():
                assert await run(server, KEPT, {"adapter": name, "share": False}) == text
            told = await run(server, OPENED)
            assert told == ["InvalidState", "export 'king' was made with adapter 'poet': open it with adapter='poet'"]
            assert isinstance(await run(server, OPENED, {"adapter": "poet"}), str)
            server.adapters.drop("poet")
            await server.adapters.load("poet", "painter")
            told = await run(server, OPENED, {"adapter": "poet"})
            assert told[0] == "NotFound"
            another = await run(server, KEPT, {"adapter": "poet"})
            assert another == await run(server, KEPT, {"adapter": "poet", "share": False}) != made["poet"]

    asyncio.run(check())


@pytest.mark.parametrize("hosts", corpus([0, 2], lambda _: "any"))
def test_masks_and_adapters_go_with_all_that_can_be_read(guest_cache: Path, tmp_path: Path, hosts: int) -> None:
    async def check() -> None:
        write(tmp_path, ("poet", "painter"))
        given = [f"{name}={tmp_path / name}" for name in ("poet", "painter")]
        client = InProcessClient(FakeModel(num_pages=4096))
        async with started(guest_cache, client, hosts=hosts, adapter=given, warm_pool=0) as server:
            async with asyncio.timeout(HANG_SECONDS):
                found, refused, futures = await run(server, COMBINED)
        for masked in (False, True):
            ways = [found[f"{adapter} {masked}"] for adapter in ("", "poet", "painter")]
            for place in range(7):
                if not (masked and place == 4):  # nothing goes on from a step with a mask
                    assert len({str(way[place]) for way in ways}) == 3, f"{place} of {masked}"
        for adapter in ("", "poet", "painter"):
            plain, masked = found[f"{adapter} False"], found[f"{adapter} True"]
            assert plain[0] == masked[0]
            assert plain[1] != masked[1]
            assert plain[2][0] == masked[2][0] == 6
            assert plain[3] != masked[3]
            assert masked[4] is True
        assert refused == [
            *("not-found", "not-found", "invalid-argument", "invalid-argument"),
            *("adapter", "mask[0]", "mask"),
        ]
        assert futures == 0

    asyncio.run(check())
