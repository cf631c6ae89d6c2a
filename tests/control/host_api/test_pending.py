"""Bytes of waiting commands and untaken results: bounded, whatever their number."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from pie_control.calls import CALLS
from pie_control.calls.sampler import BIAS_BYTES, Sampler, SamplingParams, make_bias
from pie_control.calls.values import Run
from pie_control.host_api.limits.pending import weigher
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient
from tests.helpers.guard import HANG_SECONDS
from tests.helpers.servers import hosted, launch, started

LIMIT = 1 << 20

COMMANDS = """
from inferlet_sdk.bindings import allocate, core, forward, input_text, output_text
from inferlet_sdk.errors import QuotaExceeded, call

def main(args):
    slow, queue = core.create_queue(args.model), core.create_queue(args.model)
    embed = allocate.alloc(slow, allocate.Memory.EMB, 2)
    tokens = [i % 259 for i in range(250)]

    def flood():
        for n in range(200):  # one wave each: writes the same embed again
            input_text.embed_txt(slow, [1], [0], [embed, 1])
        forward.forward(slow, [], [embed, 1], [], [embed + 1, 1], [], [], [], "", 0, 0, 0.0, False)
        futures = []
        try:
            while True:  # reads what the other queue writes: waits for all of it
                futures.append(call(output_text.get_logprobs, queue, [embed + 1, 1], tokens))
        except QuotaExceeded as error:
            args.send(str(error))
        for future in futures:
            core.wait([future])
            core.await_floats(future)
        return len(futures)

    counts = [flood(), flood()]
    args.send(str(counts))
    core.wait([core.sleep(10**18)])
"""
RESULTS = """
from inferlet_sdk.bindings import allocate, core, forward, input_text, output_text
from inferlet_sdk.errors import QuotaExceeded, call

def main(args):
    queue = core.create_queue(args.model)
    embed = allocate.alloc(queue, allocate.Memory.EMB, 2)
    input_text.embed_txt(queue, [1], [0], [embed, 1])
    forward.forward(queue, [], [embed, 1], [], [embed + 1, 1], [], [], [], "", 0, 0, 0.0, False)

    def flood():
        futures = []
        try:
            while True:
                futures.append(call(output_text.get_next_dist, queue, [embed + 1, 1], 250, 1.0))
        except QuotaExceeded as error:
            args.send(str(error))
        core.wait([futures[-1]])
        for future in futures[::2]:
            core.wait([future])
            output_text.await_dists(future)
        for future in futures[1::2]:
            core.cancel(future)
        return len(futures)

    counts = [flood(), flood()]
    args.send(str(counts))
    core.wait([core.sleep(10**18)])
"""


@pytest.mark.parametrize(
    ("program", "each"),
    [(COMMANDS, 250 * 44 + 2 * 40), (RESULTS, 250 * 8 + 4)],
    ids=["waiting commands", "untaken results"],
)
def test_what_is_pending_is_bounded_and_counted_down(guest_cache: Path, program: str, each: int) -> None:
    async def body(server: ServerApi) -> None:
        inferlet, listener = await launch(server, program)
        await listener.until_messages(3)
        *refusals, counts = listener.messages
        assert all(f"the limit is {LIMIT}; wait for results and take them first" in text for text in refusals)
        assert [int(count) for count in re.findall(r"\d+", counts)] == [LIMIT // each] * 2
        guest: Any = hosted(server, inferlet).holdings
        assert guest.pending.bytes == 0
        server.terminate(inferlet.id, "the test is over")

    async def check() -> None:
        client = InProcessClient(FakeModel())
        async with (
            started(guest_cache, client, warm_pool=0, max_pending_bytes=LIMIT) as server,
            asyncio.timeout(HANG_SECONDS),
        ):
            await body(server)

    asyncio.run(check())


def test_what_commands_keep_of_samplers_counts() -> None:
    biased = Sampler(SamplingParams(), 0, make_bias([(token, 1.0) for token in range(512)]))
    for name, arguments in {
        "sample": (0, biased, [], "", 0),
        "verify": ([0, 1], [], biased),
        "forward": ([], [0, 1], [], [0, 1], [], [], [], "", biased, 0, 0.0, False),
    }.items():
        assert weigher(CALLS[name])(arguments) >= 512 * BIAS_BYTES


def test_values_that_may_be_large_have_a_size() -> None:
    for call in CALLS.values():
        for value in call.values if call.issue is not None else ():
            if value is Run or any("NDArray" in str(kind) for kind in value.__annotations__.values()):
                assert call.result_bytes or call.waits, call.name
