"""Selecting, best of several and beam search in the sandbox, on the real control layer; scores are those of `score`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import run, started

PROGRAM = """
from math import isclose
from inferlet_sdk import *

def near(a, b):
    return isclose(a, b, abs_tol=1e-3)

async def mean(ctx, tokens):
    scores = await ctx.score(tokens)
    return sum(scores) / len(scores)

async def selecting(args, told):
    options = ["apple pie", "apple tart", "apple", "banana", "b", "apple pies and more"]
    async with Context(args.model) as ctx:
        ctx.fill("I like ")
        sums = {one: sum(await ctx.score(one)) for one in options}
        means = {one: await mean(ctx, list(one.encode())) for one in options}
        fork = ctx.fork()
        told["select"] = await ctx.select(options) == max(options, key=sums.get)
        told["select mean"] = await fork.select(options, mean=True) == max(options, key=means.get)
        told["selected text"] = ctx.text == "I like " + max(options, key=sums.get)
        fork.close()

async def sampling(args, told):
    async with Context(args.model) as ctx:
        ctx.fill("Once upon a time")
        before = ctx.fork()
        found = await ctx.best_of(4, 8, sampler=Sampler(seed=3), stop=IgnoreStopTokens())
        told["best of"] = [len(found), len({one.tokens for one in found}), [len(one.tokens) for one in found]]
        told["scores"] = all([near(one.score, await mean(before, one.tokens)) for one in found])
        told["sorted"] = [one.score for one in found] == sorted([one.score for one in found], reverse=True)
        told["kept"] = ctx.tokens == before.tokens + found[0].tokens
        again = before.fork()
        async def longest(text): return len(text.strip("abcdefghijklm"))
        judged = await again.best_of(3, 8, sampler=Sampler(seed=3), stop=IgnoreStopTokens(), score=longest)
        told["judged"] = again.text == before.text + max(judged, key=lambda one: one.score).text
        first = await before.fork().generate_until(IgnoreStopTokens(), 8, sampler=Sampler(seed=3))
        told["first seed"] = first in [one.text for one in found]
        again.close(), before.close()

async def beams(args, told):
    async with Context(args.model) as ctx:
        ctx.fill("The answer is")
        before = ctx.fork()
        greedy = await before.fork().generate_until(IgnoreStopTokens(), 6)
        one = await before.fork().beam(1, 6, stop=[])
        told["width 1"] = [hypothesis.text for hypothesis in one] == [greedy]
        found = await ctx.beam(4, 6, stop=[])
        reasons = {each.stop_reason for each in found}
        told["beam"] = [len(found), {len(each.tokens) for each in found} == {6}, reasons == {"length"}]
        told["beam scores"] = all([near(each.score, await mean(before, each.tokens)) for each in found])
        told["beam order"] = found[0].score >= one[0].score and found == sorted(found, key=lambda each: -each.score)
        told["beam kept"] = ctx.tokens == before.tokens + found[0].tokens
        ended = await before.fork().beam(3, 6, stop=range(200))
        told["beam stops"] = all(min(each.tokens, default=200) >= 200 for each in ended)
        told["beam ends"] = "stop" in {each.stop_reason for each in ended}
        queue = before.queue
        owned = await before.beam(2, 3, stop=[])
        told["own queue"] = before.queue == queue and before.tokens[-3:] == owned[0].tokens
        before.close()

async def drafting(args, told):
    async with Context(args.model) as ctx:
        ctx.fill("the cat sat on the mat")
        biased = Sampler(seed=5, logit_bias={101: 6.0})
        for name, sampler in {"greedy": Greedy(), "seed": Sampler(seed=5), "bias": biased}.items():
            plain = ctx.fork().generate(30, sampler=sampler, stop=IgnoreStopTokens())
            await plain.whole()
            known = list(ctx.tokens) + plain.tokens
            draft = lambda tokens: known[len(tokens):len(tokens) + 3] + [7]
            drafted = ctx.fork().generate(30, sampler=sampler, stop=IgnoreStopTokens(), draft=draft)
            await drafted.whole()
            told["draft " + name] = drafted.tokens == plain.tokens

async def main(args):
    told = {}
    for part in (selecting, sampling, beams, drafting):
        await part(args, told)
    usage = traits.usage()
    return [told, usage.pages, usage.embeds, usage.futures]
"""


def test_continuations_are_chosen_by_their_scores(guest_cache: Path) -> None:
    async def scenario() -> Any:
        async with started(guest_cache, InProcessClient(FakeModel(num_pages=4096)), warm_pool=0) as server:
            return await asyncio.wait_for(run(server, PROGRAM), HANG_SECONDS)

    told, *held = asyncio.run(scenario())
    lists = {name: told.pop(name) for name in ("best of", "beam")}
    assert {name for name, right in told.items() if right is not True} == set()
    assert lists == {"best of": [4, 4, [8] * 4], "beam": [4, True, True]}
    assert held == [0, 0, 0]
