"""A model with a context beyond what one call lists: prompts are tokenized, shared and told in whole."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import launch, started

LENGTH = 140_000
PROGRAM = f"""
from inferlet_sdk import *

async def main(args):
    told = []
    for _ in range(2):
        with Context().fill("a" * {LENGTH}) as ctx:
            async for _ in ctx.generate(max_tokens=1):
                pass
            told.append((ctx.found, len(ctx.text)))
    return told
"""


def test_a_prompt_of_more_tokens_than_a_call_lists_is_served_and_shared(guest_cache: Path) -> None:
    async def main() -> None:
        model = FakeModel(max_context=200_000, num_pages=20_000, max_batch_tokens=1 << 14)
        async with started(guest_cache, InProcessClient(model), hosts=0, max_pages=20_000) as server:
            _, heard = await launch(server, PROGRAM)
            ended = await asyncio.wait_for(heard.ended, HANG_SECONDS)
        (first, length), (second, again) = json.loads(ended.result or "[]")
        assert (first, second) == (0, (LENGTH - 1) // 16 * 16)
        assert length == again >= LENGTH

    asyncio.run(main())
