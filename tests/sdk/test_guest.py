"""The SDK inside its component, on the real control layer, with a fake model whose tokens depend on every slot."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pie_control.config import build_config
from pie_control.inferlets.events import Ended, Event
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient

SECONDS = 30.0

IMPORTS = "import asyncio\nfrom inferlet_sdk import *\n"

SAME_TOKENS = """
async def main(args):
    texts = []
    for run_ahead in (True, False):
        ctx = Context(args.model).fill("the quick brown fox jumps over the lazy dog")
        await ctx.generate_until(IgnoreStopTokens(), max_tokens=70, run_ahead=run_ahead)
        texts.append(ctx.tokens)
    stopped = Context(args.model).fill("the quick brown fox jumps over the lazy dog")
    await stopped.generate_until([IgnoreStopTokens(), StopWhen(lambda g: len(g.tokens) == 33)])
    await stopped.generate_until(IgnoreStopTokens(), max_tokens=37)
    texts.append(stopped.tokens)
    return [len(texts[0]), len(set(texts))]
"""

FORKS = """
async def alone(model, tokens):
    ctx = Context(model).fill(tokens)
    await ctx.generate_until(IgnoreStopTokens(), max_tokens=20)
    return ctx.tokens

async def branch(ctx, token):
    ctx.fill([token])
    start = ctx.tokens
    await ctx.generate_until(IgnoreStopTokens(), max_tokens=20)
    return start, ctx.tokens

async def main(args):
    ctx = Context(args.model).fill("the quick brown fox jumps over the lazy dog and more")
    await ctx.generate_until(IgnoreStopTokens(), max_tokens=9)
    children = [ctx.fork() for _ in range(4)]
    grandchild = children[0].fork()
    results = await gather(*(branch(c, n + 5) for n, c in enumerate([*children, ctx, grandchild])))
    right = [await alone(args.model, start) == tokens for start, tokens in results]
    for context in (ctx, children[2], grandchild, *children):
        context.close()
    await asyncio.sleep(0.01)
    return right
"""

EVERYTHING_FREED = """
async def main(args):
    async with Context(args.model) as ctx:
        ctx.fill("a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3)
        child = ctx.fork()
        await gather(ctx.generate_until(max_tokens=30), child.generate_until(max_tokens=30))
        scores = await ctx.score("some more text")
        ctx.truncate(20)
        await ctx.generate_until(max_tokens=5)
        child.close()
    usage = traits.usage()
    return [usage.pages, usage.embeds, usage.queues, usage.futures, all(s <= 0 for s in scores)]
"""


async def result_of(text: str, cache_dir: Path) -> Any:
    ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    def listener(event: Event) -> None:
        if isinstance(event, Ended):
            ended.set_result(event)

    config = build_config({"cache_dir": str(cache_dir), "warm_pool": 0})
    server = ServerApi(config, InProcessClient(FakeModel(num_pages=512)))
    await server.start()
    try:
        info = await server.upload((IMPORTS + text).encode(), "program.py")
        await server.launch(info.program, listener=listener)
        async with asyncio.timeout(SECONDS):
            end = await ended
    finally:
        await server.close()
    assert end.status == "finished", end.error
    return json.loads(end.result or "null")


@pytest.mark.parametrize(
    ("program", "result"),
    [(SAME_TOKENS, None), (FORKS, [True] * 6), (EVERYTHING_FREED, [0, 0, 0, 0, True])],
    ids=["same-tokens", "forks", "everything-freed"],
)
def test_in_the_real_host(program: str, result: Any, guest_cache: Path) -> None:
    given = asyncio.run(result_of(program, guest_cache))
    if result is None:
        length, different = given
        assert length > 70
        assert different == 1
    else:
        assert given == result
