"""Decode runs in the sandbox, on the real control layer: the same tokens as step by step, nothing left, refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pie_control.inferlets import mailbox
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import Listener, hosted, launch, run, started

IDENTITY = """
import asyncio, itertools
from inferlet_sdk import *

CONDITIONS = {
    "none": (), "string": "a", "strings": ["q", "th", "xyzzy", ".."], "regex": StopRegex(r"[aeiou]", hold=2),
    "tokens": StopTokens(*range(97, 101)), "maximum": MaxTokens(7), "predicate": lambda g: len(g.tokens) == 9,
}
SAMPLERS = {
    "greedy": Greedy(), "seed": Sampler(seed=5), "cut": Sampler(seed=6, top_k=9, temperature=0.7),
    "penalties": Sampler(repetition_penalty=1.2, window=5, seed=7),
    "typical": Sampler(seed=8, typical_p=0.6),
    "own": DistSampler(lambda dist: dist.tokens[1], k=3),
}

async def iterate(args, generation):
    return "".join([piece async for piece in generation])

async def whole(args, generation):
    return await generation.whole()

async def stream(args, generation):
    return await args.stream(generation)

async def lag(args, generation):
    pieces = []
    async for piece in generation:
        pieces.append(piece)
        await asyncio.sleep(0.002)
    return "".join(pieces)

async def outcome(args, way, stop, sampler, run_ahead=True):
    stops = [IgnoreStopTokens(), *(stop if isinstance(stop, (list, tuple)) else [stop])]
    async with Context(args.model) as ctx:
        ctx.fill("the quick brown fox jumps over")
        generation = ctx.generate(60, stop=stops, sampler=sampler, run_ahead=run_ahead)
        text = await way(args, generation)
        after = ctx.tokens
        fork = ctx.fork()
        more = await fork.generate_until(IgnoreStopTokens(), 5, run_ahead=False)
        fork.close()
        return text, after, generation.stop_reason, more

async def main(args):
    wrong = []
    for (name, stop), (kind, sampler) in zip(CONDITIONS.items(), itertools.cycle(SAMPLERS.items())):
        wanted = await outcome(args, iterate, stop, sampler, run_ahead=False)
        found = await gather(*(outcome(args, way, stop, sampler) for way in (iterate, whole, stream, lag)))
        wrong += [(name, kind, place) for place, one in enumerate(found) if one != wanted]
    usage = traits.usage()
    return [wrong, usage.pages, usage.embeds, usage.queues, usage.futures]
"""

LONG = """
from inferlet_sdk import *

async def main(args, length=600):
    '''More steps than a run has, in little memory, beside others.'''
    async def tokens(**options):
        async with Context(args.model) as ctx:
            await ctx.fill("abc").generate_until(IgnoreStopTokens(), length, sampler=Sampler(seed=3), **options)
            return ctx.tokens
    wanted = await tokens(run_ahead=False)
    found = await gather(*(tokens() for _ in range(3)))
    return [len(wanted), [one == wanted for one in found], traits.usage().pages]
"""

REFUSED = """
from inferlet_sdk import *
from inferlet_sdk import bindings
from inferlet_sdk.errors import call
from inferlet_sdk.traits import decode, watch_run

async def main(args):
    queue = traits.create_queue(args.model)
    kv, many, embeds = traits.alloc_kvpage(queue, 2), traits.alloc_kvpage(queue, 100), traits.alloc_emb(queue, 3)
    sampler, detokenizer = traits.create_sampler(temperature=0.0), traits.create_detokenizer(queue)

    def fill(pages):
        traits.embed_txt(queue, [65, 66], [0, 1], embeds[:2])
        traits.forward(queue, pages, embeds[:2], pages, embeds[2:])

    def issue(steps=4, stop=(), options="", pages=kv, sampler=sampler, position=2):
        ranges = list(pages.ranges)
        return call(bindings.fused.decode, queue, embeds[2], sampler, embeds[0], position, ranges, ranges, steps,
                    list(stop), options, 0, 0)

    def watch(run, options="{}", detokenizer=detokenizer):
        return call(bindings.fused.watch_run, run, detokenizer, options)

    def take(run, detokenizer=0):
        return call(bindings.fused.take_run, run, detokenizer)

    fill(kv)
    timer = traits.sleep(3600)
    calls = {
        "no steps": lambda: issue(0),
        "too many steps": lambda: issue(2**31),
        "too few slots": lambda: issue(1000),
        "options no JSON": lambda: issue(options="{"),
        "options a list": lambda: issue(options="[]"),
        "unknown option": lambda: issue(options='{"bias": 1}'),
        "no sampler": lambda: issue(sampler=detokenizer),
        "foreign page": lambda: issue(pages=Pages((777, 1))),
        "too many stops": lambda: issue(stop=range(65)),
        "no run": lambda: take(12345),
        "not a run": lambda: watch(timer.number),
    }
    told = {name: refusal(function) for name, function in calls.items()}
    run = issue()
    told["no detokenizer"] = refusal(lambda: take(run, 999))
    told["watch options"] = refusal(lambda: watch(run, '{"stop": "x"}'))
    told["watch unknown"] = refusal(lambda: watch(run, '{"stops": []}'))
    told["watch many"] = refusal(lambda: watch(run, '{"stop": [' + ", ".join(['"x"'] * 17) + "]}"))
    told["watch empty"] = refusal(lambda: watch(run, '{"stop": [""]}'))
    watch(run)
    told["watch twice"] = refusal(lambda: watch(run))
    tokens, texts, over, _ = take(run)
    told["taken"] = [len(tokens), len(texts), over]
    told["double take"] = refusal(lambda: take(run))
    told["cancel what is over"] = refusal(lambda: call(bindings.core.cancel, run))
    fill(many)
    run = issue(1000, pages=many)  # it is not over when its pages are asked for
    told["trim"] = refusal(lambda: traits.trim_kvpage(queue, many, 1))
    call(bindings.core.cancel, run)
    timer.cancel()
    traits.destroy_sampler(sampler)
    traits.destroy_detokenizer(detokenizer)
    traits.dealloc_kvpage(queue, kv)
    traits.dealloc_kvpage(queue, many)
    traits.dealloc_emb(queue, embeds)
    await traits.synchronize(queue)
    usage = traits.usage()
    return [told, usage.pages, usage.embeds, usage.futures]

def refusal(function):
    try:
        return function()
    except PieError as error:
        return error.code
"""
CODES = {
    "no steps": "invalid-argument",
    "too many steps": "invalid-argument",
    "too few slots": "invalid-state",
    "options no JSON": "invalid-argument",
    "options a list": "invalid-argument",
    "unknown option": "invalid-argument",
    "no sampler": "invalid-argument",
    "foreign page": "not-found",
    "too many stops": "invalid-argument",
    "no run": "not-found",
    "not a run": "invalid-argument",
    "no detokenizer": "not-found",
    "watch options": "invalid-argument",
    "watch unknown": "invalid-argument",
    "watch many": "invalid-argument",
    "watch empty": "invalid-argument",
    "trim": "invalid-state",
    "watch twice": "invalid-state",
    "taken": [4, 4, True],
    "double take": "not-found",
    "cancel what is over": "not-found",
}

STREAM = """
from inferlet_sdk import *

async def main(args, length=300):
    return await args.stream(Context(args.model).fill("abc").generate(length, stop=IgnoreStopTokens()))
"""


def result_of(source: str, cache: Path, **options: Any) -> Any:
    async def check() -> Any:
        client = InProcessClient(FakeModel(num_pages=512))
        async with started(cache, client, warm_pool=0, **options) as server, asyncio.timeout(HANG_SECONDS):
            return await run(server, source)

    return asyncio.run(check())


def test_every_way_gives_the_same_tokens_and_leaves_nothing(guest_cache: Path) -> None:
    assert result_of(IDENTITY, guest_cache) == [[], 0, 0, 0, 0]


@pytest.mark.parametrize("max_pages", [140, 512])
def test_a_long_text_takes_several_runs(guest_cache: Path, max_pages: int) -> None:
    assert result_of(LONG, guest_cache, max_pages=max_pages) == [603, [True] * 3, 0]


def test_what_cannot_be_is_refused_and_costs_nothing(guest_cache: Path) -> None:
    assert result_of(REFUSED, guest_cache) == [CODES, 0, 0, 0]


def test_a_client_that_does_not_read_holds_up_nobody_and_loses_nothing(
    guest_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "UNREAD_BYTES", 2000)

    async def check() -> None:
        client = InProcessClient(FakeModel(num_pages=512))
        async with started(guest_cache, client, warm_pool=0) as server, asyncio.timeout(HANG_SECONDS):
            wanted = await run(server, STREAM)
            program = (await server.upload(STREAM.encode(), "test")).program
            slow = await server.launch(program)
            while not (inferlet := hosted(server, slow)) or not any(
                one._over for one in inferlet.waits.futures._runs.values()
            ):
                await asyncio.sleep(0.01)
            assert slow.info().status == "running"
            assert not inferlet.mail.sender.has_room()
            assert await run(server, STREAM) == wanted  # others go on meanwhile
            listener = Listener()
            slow.attach(listener)
            ended = await listener.ended
            assert ended.status == "finished"
            assert "".join(listener.messages) in (wanted, ended.result)
            assert len("".join(listener.messages)) == len(wanted)

    asyncio.run(check())


def settled(server: ServerApi) -> bool:
    """Whether nothing goes on, and all memory is free."""
    ((worker,),) = server.statistics().models.values()
    found = worker.scheduler
    pools = (found.pages, found.embeds, found.token_slots)
    return found.runs == 0 == found.waves_in_flight and all(pool.used == 0 for pool in pools)


def test_a_killed_inferlet_leaves_no_run(guest_cache: Path) -> None:
    async def check() -> None:
        client = InProcessClient(FakeModel(num_pages=512))
        async with started(guest_cache, client, warm_pool=0) as server, asyncio.timeout(HANG_SECONDS):
            entry, listener = await launch(server, STREAM, {"length": 2000})
            await listener.until_messages(3)
            server.terminate(entry.id, "enough")
            assert (await listener.ended).status == "terminated"
            assert len(await run(server, STREAM)) > 0
            while not settled(server):
                await asyncio.sleep(0.01)

    asyncio.run(check())
