"""Scores of attention in the sandbox, on the fake model, whose queries give the same to all keys that they see."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import run, started
from tests.helpers.tiers import corpus

PROGRAM = """
from inferlet_sdk import *
from inferlet_sdk import bindings

async def main(args):
    queue = traits.create_queue(args.model)
    inputs, output, pages = traits.alloc_emb(queue, 40), traits.alloc_emb(queue), traits.alloc_kvpage(queue, 6)
    traits.embed_txt(queue, range(40), range(40), inputs)
    first = await traits.forward_with_scores(queue, pages, inputs[:3], pages, output)
    second = traits.forward_with_scores(queue, pages, inputs[3:4], pages, output)
    token = await traits.sample(queue, output, traits.create_sampler(temperature=0.0))
    second = await second
    traits.mask_kvpage(queue, pages, [0, 2])
    third = traits.forward_with_scores(queue, pages, inputs[4:6], (), output)
    third = await third
    told = []
    for wrong in (lambda: traits.forward_with_scores(queue, pages, ()),
                  lambda: traits.forward_with_scores(queue, pages, inputs, pages[:1]),
                  lambda: traits.forward_with_scores(queue, pages, [7777]),
                  lambda: traits.forward_with_adapter_and_scores(queue, "nobody", pages, inputs),
                  lambda: bindings.core.await_floats(12345)):
        try:
            wrong()
        except PieError as error:
            told.append(type(error).__name__)
        except bindings.HostError as error:
            told.append(error.value.code)
    names = [trait.name for trait in traits.available_traits(args.model)]
    return [first, second, third, told, "IntrospectiveForward" in names and "ForwardWithAdapter" in names]
"""


@pytest.mark.parametrize("hosts", corpus([2, 0], lambda _: "any"))
def test_scores_in_the_sandbox(guest_cache: Path, hosts: int) -> None:
    async def check() -> None:
        async with started(guest_cache, InProcessClient(FakeModel()), hosts=hosts, warm_pool=0) as server:
            first, second, third, told, has_traits = await asyncio.wait_for(run(server, PROGRAM), HANG_SECONDS)
        assert first == pytest.approx([1 + 1 / 2 + 1 / 3, 1 / 2 + 1 / 3, 1 / 3])
        assert second == pytest.approx([1 / 4] * 4)
        assert third == pytest.approx([1 / 3 + 1 / 4] * 3 + [1 / 4])
        assert told == ["InvalidArgument", "InvalidState", "NotFound", "NotFound", "not-found"]
        assert has_traits

    asyncio.run(check())
