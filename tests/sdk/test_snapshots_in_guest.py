"""A program whose worker is lost goes on from its last snapshot, as if nothing had been. In the sandbox, on the real
control layer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from pie_inference.protocol import RunWave, WaveDone
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, run, started
from tests.helpers.tiers import corpus

STEPS = 8

STORY = f"""
from inferlet_sdk import *

async def main(args, snapshot="", steps={STEPS}):
    ctx = Context.restore(snapshot) if snapshot else Context(args.model).fill("Once upon a time there was a ship")
    while len(ctx) < 33 + 6 * steps:
        await ctx.generate_until(IgnoreStopTokens(), 6, sampler=Sampler(seed=len(ctx)))
        if len(ctx) == 33 + 12:
            ctx.drop(4, 21)
        await args.send(ctx.snapshot())
    return ctx.tokens
"""


class Mortal(FakeModel):
    """Dies once after so many waves as it is told."""

    def __init__(self) -> None:
        super().__init__(num_pages=4096)
        self.waves_left: int | None = None

    def run(self, wave: RunWave) -> WaveDone:
        if self.waves_left == 0:
            self.waves_left = None
            raise RuntimeError("a fault of the device")
        if self.waves_left is not None:
            self.waves_left -= 1
        return super().run(wave)


async def story(server: ServerApi, model: Mortal, waves: Sequence[int]) -> tuple[list[int], list[str]]:
    """The result of the program, which is launched again with its last snapshot where the worker is lost after so many
    waves; and how its launches ended."""
    snapshot, endings = "", []
    for left in (*waves, None):
        model.waves_left = left
        _, listener = await launch(server, STORY, {"snapshot": snapshot})
        ended = await listener.ended
        endings.append(ended.status)
        snapshot = listener.messages[-1]
    assert ended.result is not None, ended.error
    return json.loads(ended.result), endings


@pytest.mark.parametrize("hosts", corpus([1, 0], lambda _: "any"))
def test_a_program_goes_on_from_its_last_snapshot_when_its_worker_was_lost(hosts: int, guest_cache: Path) -> None:
    async def scenario() -> None:
        model = Mortal()
        async with started(guest_cache, InProcessClient(model), hosts=hosts, warm_pool=0) as server:
            expected = await run(server, STORY)
            tokens, endings = await story(server, model, (12, 20))
            assert endings == ["lost", "lost", "finished"]
            assert tokens == expected

    asyncio.run(asyncio.wait_for(scenario(), HANG_SECONDS))
