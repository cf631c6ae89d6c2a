"""A model that keeps a state of each text, in a worker process: texts are those that transformers generates."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from pie_control.scheduling.statistics import SchedulerStatistics
from pie_control.server_api import ServerApi
from tests.helpers.families import save_reference
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import run, started
from tests.helpers.tiers import corpus
from tests.inference.models.test_borrowed_state import MODELS as BORROWED
from tests.inference.models.test_state import DENSE, SETTINGS

PROMPT, LENGTH = "the river and the ", 12
BEGINNING = f"""
from inferlet_sdk import *

async def continued(ctx):
    length = len(ctx)
    await ctx.generate_until(IgnoreStopTokens(), max_tokens={LENGTH})
    return [list(ctx.tokens[:length]), list(ctx.tokens[length:])]

async def main(args):
    ctx = Context().fill({PROMPT!r})
"""
PLAIN = "    return [await continued(ctx)]"
FORKS = """
    await ctx.flush()
    child = ctx.fork().fill("sea")
    return [await continued(ctx), await continued(child)]
"""
KEPT = """
    ctx.keep()
    length, found = len(ctx), []
    for more in ("hills", "sea"):
        found.append(await continued(ctx.fill(more)))
        ctx.truncate(length)
    return [*found, await continued(ctx)]
"""
STREAMED = f"""
    length = len(ctx)
    await args.stream(ctx.generate({LENGTH}, stop=IgnoreStopTokens()))
    return [[list(ctx.tokens[:length]), list(ctx.tokens[length:])]]
"""
LEFT = f"""
    length = len(ctx)
    async for _ in ctx.generate({LENGTH}, stop=IgnoreStopTokens()):
        break
    await ctx.generate_until(IgnoreStopTokens(), max_tokens={LENGTH} - (len(ctx) - length))
    return [[list(ctx.tokens[:length]), list(ctx.tokens[length:])]]
"""
WENT_BACK = """
    whole = await continued(ctx)
    ctx.truncate(len(whole[0]) + 5)
    return [whole, await continued(ctx)]
"""
DRAFTED = f"""
    await ctx.flush()
    prompt, right = await continued(ctx.fork())

    def half_right(tokens):  # two of four
        done = len(tokens) - len(prompt)
        return [*right[done:done + 2], *[token ^ 1 for token in right[done + 2:done + 4]]]

    await ctx.generate_until(IgnoreStopTokens(), max_tokens={LENGTH}, draft=half_right)
    return [[prompt, list(ctx.tokens[len(prompt):])]]
"""


def scheduler(server: ServerApi) -> SchedulerStatistics:
    (replica,) = server.statistics().models["tiny"]
    return replica.scheduler


SHARED = f"""
    ctx = Context().fill({PROMPT!r} * 20).fill(TAIL)
    return [await continued(ctx), ctx.found]
"""
REPLIED = f"""
    ctx = Context().fill({PROMPT!r} * 20)
    found = [await continued(ctx), 0]
    ctx.keep()
    return found
"""
NEXT_TURN = """
    ctx = Context().fill(TEXT).fill("hills")
    return [await continued(ctx), ctx.found]
"""
EXPORTED = """
    await ctx.export("text")
    return [await continued(ctx), await continued((await Context.open("text")).fill("hills"))]
"""
MORE = FORKS, KEPT, STREAMED, LEFT, WENT_BACK, EXPORTED


def continuation(reference: Any, tokens: list[int]) -> list[int]:
    """What transformers generates behind a text, greedily."""
    options = reference.generation_config
    options.eos_token_id = None
    with torch.inference_mode():
        whole = reference.generate(torch.tensor([tokens]), max_new_tokens=LENGTH, do_sample=False, pad_token_id=0)
    generated: list[int] = whole[0, len(tokens) :].tolist()
    return generated


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3.5": (DENSE, SETTINGS),
    "lfm2 by transformers' code": BORROWED["lfm2"],
    "bamba by transformers' code": BORROWED["bamba"],
}


@pytest.mark.parametrize("name", corpus(MODELS, lambda _: "a model"))
def test_texts_are_those_of_transformers(name: str, guest_cache: Path, tmp_path: Path) -> None:
    architecture, settings = MODELS[name]
    reference = save_reference(tmp_path, architecture, **settings)

    async def main() -> list[Any]:
        options: dict[str, object] = {"model": [f"tiny={tmp_path}"], "dtype": "float32", "states": 12}
        async with started(guest_cache, **options) as server, asyncio.timeout(HANG_SECONDS):
            together = await asyncio.gather(*(run(server, BEGINNING + PLAIN) for _ in range(2)))
            others = [await run(server, BEGINNING + rest) for rest in MORE]
            before = scheduler(server).input_tokens
            others.append(await run(server, BEGINNING + DRAFTED))
            # the prompt once, the fork's continuation, and four drafts, of which the last ends the text
            most = len(others[-1][0][0]) + LENGTH + 4 + 5 + 5 + 3
            assert scheduler(server).input_tokens - before <= most + ("transformers" in name) * LENGTH
            shared = [await run(server, BEGINNING + SHARED.replace("TAIL", repr(tail))) for tail in ("sea", "hills")]
            assert [found for _, found in shared] == [0, len(PROMPT) * 20 // 16 * 16]
            shared.append(await run(server, BEGINNING + REPLIED))
            conversation = [token for part in shared[-1][0] for token in part]
            shared.append(await run(server, BEGINNING + NEXT_TURN.replace("TEXT", repr(conversation))))
            assert shared[-1][1] == len(conversation) - 1
            left = scheduler(server)
            assert (left.pages.used, left.states.used) == (left.export_pages, left.exports)
            return [text for found in (*together, *others) for text in found] + [text for text, _ in shared]

    found = asyncio.run(main())
    assert len(found) == 1 + 1 + 2 + 3 + 1 + 1 + 2 + 2 + 1 + 2 + 2
    for tokens, generated in found:
        assert generated == continuation(reference, tokens)
