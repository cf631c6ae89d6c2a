"""Log-probabilities and logit bias in the sandbox, on the real control layer, in this process and in host processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import run, started
from tests.helpers.tiers import corpus

PROGRAM = """
from math import isclose
from inferlet_sdk import *

SAMPLERS = {
    "greedy": Greedy(), "seed": Sampler(seed=5), "penalties": Sampler(repetition_penalty=1.3, window=5, seed=7),
    "own": DistSampler(lambda dist: dist.tokens[1], k=3), "bias": Sampler(seed=5, logit_bias={101: 8.0, 97: -1000}),
}
STOPS = {"none": IgnoreStopTokens(), "string": [IgnoreStopTokens(), "e"], "few": [IgnoreStopTokens(), MaxTokens(4)]}

async def iterate(args, generation):
    async for _ in generation: pass

async def whole(args, generation):
    await generation.whole()

async def stream(args, generation):
    await args.stream(generation)

def close(one, other):
    return len(one) == len(other) and all(isclose(a, b, abs_tol=1e-3) for a, b in zip(one, other))

def same(one, other):
    return len(one) == len(other) and all(
        close([a.logprob], [b.logprob]) and [t for t, _ in a.alternatives] == [t for t, _ in b.alternatives]
        and close([p for _, p in a.alternatives], [p for _, p in b.alternatives]) for a, b in zip(one, other))

async def outcome(args, way, stop, sampler, run_ahead=True, draft=None):
    async with Context(args.model) as ctx:
        ctx.fill("the quick brown fox")
        before = ctx.fork()
        generation = ctx.generate(20, stop=stop, sampler=sampler, run_ahead=run_ahead, logprobs=2, draft=draft)
        await way(args, generation)
        right = close([one.logprob for one in generation.logprobs], await before.score(generation.tokens))
        first = await before.next_dist(2)
        best = not generation.tokens or [token for token, _ in generation.logprobs[0].alternatives] == first.tokens
        before.close()
        return generation.tokens, generation.logprobs, right and best

async def main(args):
    wrong = []
    for name, stop in STOPS.items():
        for kind, sampler in SAMPLERS.items():
            tokens, logprobs, right = await outcome(args, iterate, stop, sampler, run_ahead=False)
            if not right or len(tokens) != len(logprobs):
                wrong.append([name, kind, "step by step"])
            for way in (iterate, whole, stream):
                found, others, right = await outcome(args, way, stop, sampler)
                if found != tokens or not right or not same(others, logprobs):
                    wrong.append([name, kind, way.__name__])
            if kind in ("greedy", "seed", "bias"):
                found, others, right = await outcome(args, iterate, stop, sampler, draft=PromptLookup(match=1))
                if found != tokens or not right or not same(others, logprobs):
                    wrong.append([name, kind, "drafted"])
    ctx = Context(args.model).fill("abc")
    biased = await ctx.fork().generate_until(IgnoreStopTokens(), 5, sampler=Sampler(logit_bias={101: 1000}))
    plain = ctx.generate(3, stop=IgnoreStopTokens())
    await plain.whole()
    return [wrong, biased, plain.logprobs]
"""


@pytest.mark.parametrize("hosts", corpus([1, 0], lambda _: "any"))
def test_the_same_log_probabilities_however_tokens_come(hosts: int, guest_cache: Path) -> None:
    async def scenario() -> Any:
        async with started(guest_cache, InProcessClient(FakeModel()), hosts=hosts, warm_pool=0) as server:
            return await asyncio.wait_for(run(server, PROGRAM), HANG_SECONDS)

    assert asyncio.run(scenario()) == [[], "eeeee", []]
