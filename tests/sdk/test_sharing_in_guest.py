"""Keys that inferlets share: equal prefixes of long prompts, and contexts by name. In the sandbox, on the real control
layer, in this process and in host processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.guests import program_of, source
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.protocol import Forward, RunWave, WaveDone
from tests.examples.test_rust_programs import features
from tests.examples.test_rust_states import Act
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import run, started
from tests.helpers.tiers import corpus

PROMPTED = """
from inferlet_sdk import *

async def main(args, system="", question="", share=True, way="text"):
    async with Context(args.model, share=share) as ctx:
        ctx.fill(system).fill(question)
        if way == "dist":
            dist = await ctx.next_dist(2)
            first = dist.tokens
        text = await ctx.generate_until(IgnoreStopTokens(), 8, run_ahead=way != "steps")
        truncated = await ctx.truncate(200).generate_until(IgnoreStopTokens(), 4)
        return [text, truncated]
"""

NAMED = """
from inferlet_sdk import *

async def main(args, name="", mode="export"):
    if mode == "export":
        ctx = Context(args.model).fill("The quick brown fox jumps over it")
        await ctx.export(name)
    else:
        ctx = await Context.open(name, args.model)
    fork = ctx.fork()
    text = await ctx.generate_until(IgnoreStopTokens(), 8)
    other = await fork.truncate(20).generate_until(IgnoreStopTokens(), 8)
    return [text, other, fork.text, len(ctx)]
"""

MISSING = """
from inferlet_sdk import *

async def main(args):
    told = []
    try:
        await Context.open("nothing", args.model)
    except NotFound as error:
        told.append(error.message)
    ctx = Context(args.model).fill("abcdefgh" * 8).drop(2, 40)
    try:
        await ctx.export("holes")
    except InvalidState as error:
        told.append(error.message)
    await ctx.flush()
    ctx.close()
    usage = traits.usage()
    return [told, usage.pages, usage.embeds]
"""


class Counting(FakeModel):
    """Counts input tokens."""

    def __init__(self) -> None:
        super().__init__(num_pages=4096)
        self.inputs = 0

    def run(self, wave: RunWave) -> WaveDone:
        self.inputs += sum(len(batch.q_embeds) for batch in wave.batches if isinstance(batch, Forward))
        return super().run(wave)


def outcomes(cache: Path, hosts: int, *launches: tuple[str | bytes, Mapping[str, Any]]) -> list[tuple[Any, int]]:
    """What each program gives, one after the other, and the input tokens that the worker has run for it."""

    async def scenario() -> list[tuple[Any, int]]:
        model, found = Counting(), []
        async with started(cache, InProcessClient(model), hosts=hosts, warm_pool=0) as server:
            for source, arguments in launches:
                before = model.inputs
                result = await asyncio.wait_for(run(server, source, arguments), HANG_SECONDS)
                found.append((result, model.inputs - before))
        return found

    return asyncio.run(scenario())


SYSTEM = "You answer in the manner of a lighthouse keeper. " * 20
LONG = {"system": SYSTEM, "question": "What is the sea?"}


@pytest.mark.parametrize("hosts", corpus([1, 0], lambda _: "any"))
def test_a_second_program_runs_only_what_is_new_of_a_long_prompt(hosts: int, guest_cache: Path) -> None:
    first, second, other, off, dist, steps = outcomes(
        guest_cache,
        hosts,
        (PROMPTED, LONG),
        (PROMPTED, LONG),
        (PROMPTED, {**LONG, "question": "And the land?"}),
        (PROMPTED, {**LONG, "share": False}),
        (PROMPTED, {**LONG, "way": "dist"}),
        (PROMPTED, {**LONG, "way": "steps"}),
    )
    assert first[0] == second[0] == off[0] == dist[0] == steps[0] != other[0]
    prompt = len(SYSTEM) + len(LONG["question"])
    assert first[1] >= prompt <= off[1]
    kept = (prompt - 1) // 16 * 16
    for run_again in (second, dist, steps):
        assert run_again[1] == first[1] - kept
    assert other[1] <= first[1] - len(SYSTEM) // 16 * 16


def test_a_text_of_any_length_keeps_prompts_apart(guest_cache: Path) -> None:
    long = "a salt " * 500
    first, again, other = outcomes(
        guest_cache, 0, *((PROMPTED, {**LONG, "share": share}) for share in (long, long, f"{long}."))
    )
    assert again[1] < first[1] == other[1]


def test_short_prompts_are_left_alone(guest_cache: Path) -> None:
    short = {"system": "Short. " * 35}  # 245 tokens
    first, second = outcomes(guest_cache, 0, (PROMPTED, short), (PROMPTED, short))
    assert first == second


def test_programs_in_rust_share_prompts_with_those_in_python(guest_cache: Path) -> None:
    python, rust = source("paper/feature"), program_of("rust", "paper")
    asked = [{"prompt": [*(1 + n % 250 for n in range(300)), last], "tokens": 4, "show": True} for last in (7, 8, 9)]
    short = {"prompt": list(range(1, 200)), "tokens": 4}
    first, again, other, *both = outcomes(
        guest_cache, 0, (rust, asked[0]), (rust, asked[0]), (python, asked[1]), (rust, short), (rust, short)
    )
    assert again == (first[0], first[1] - 288)
    assert other[1] == first[1] - 288
    assert both[0] == both[1]


TEXT = [97 + n * n % 26 for n in range(320)]
NEW: Act = "new", 0, [], []
BEST: Act = "try", 0, [], [json.dumps({"what": "best", "width": 2, "most": 2, "seed": 1})]
SHARED_OR_NOT: dict[str, tuple[list[Act], int]] = {
    "a prompt": ([NEW, ("fill", 0, TEXT, []), ("sample", 0, [], [])], 304),
    "a prompt that is forked first": ([NEW, ("fill", 0, TEXT, []), BEST], 304),
    "a text that was kept before it ran": (
        [NEW, ("fill", 0, TEXT, []), ("keep", 0, [], []), NEW, ("fill", 1, [65], []),
         *8 * [("sample", 1, [], [])]], 304),
    "a joined one": (
        [NEW, ("fill", 0, TEXT[:200], []), NEW, ("fill", 1, TEXT[200:], []), ("join", 0, [0, 1], []),
         ("sample", 2, [], []), ("keep", 2, [], [])], 0),
    "an exported join": (
        [NEW, ("fill", 0, TEXT[:200], []), NEW, ("fill", 1, TEXT[200:], []), ("join", 0, [0, 1], []),
         ("export", 2, [], ["joined"]), ("sample", 3, [], []), ("keep", 3, [], [])], 0),
    "one that is kept apart": (
        [NEW, ("apart", 0, [], []), ("fill", 0, TEXT, []), ("restart", 0, [400], []), ("sample", 1, [], [])], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED_OR_NOT)
def test_what_a_program_in_rust_offers_to_the_next_one(name: str, guest_cache: Path) -> None:
    acts, shared = SHARED_OR_NOT[name]
    after = [NEW, ("fill", 0, [*TEXT, 65], []), ("sample", 0, [], [])]
    given = [(features()[0], {"what": "acts", "acts": json.dumps(one)}) for one in (acts, after)]
    _, (_, ran) = outcomes(guest_cache, 0, *given)
    assert ran == 321 - shared


@pytest.mark.parametrize("hosts", corpus([0, 1], lambda _: "any"))
def test_a_context_outlives_its_program_under_a_name(hosts: int, guest_cache: Path) -> None:
    made, opened, again = outcomes(
        guest_cache,
        hosts,
        (NAMED, {"name": "fox"}),
        (NAMED, {"name": "fox", "mode": "open"}),
        (NAMED, {"name": "fox", "mode": "open"}),
    )
    assert made[0] == opened[0] == again[0]
    assert made[1] - opened[1] > 20


def test_what_is_not_there_or_cannot_be_exported_is_told(guest_cache: Path) -> None:
    (((told, *held), _),) = outcomes(guest_cache, 0, (MISSING, {}))
    assert "there is no export 'nothing'" in told[0]
    assert "tokens of the context were dropped" in told[1]
    assert held == [0, 0]
