"""What does a call cost an inferlet, with some inferlets calling at the same time (paper, Figure 10)?

Layer "control": time until the call returns, measured in the guest. Layer "inference": time until its value or effect
is there, minus the worker's own time, so that the way there and back remains: `us` = `latency_us` - `worker_us`, where
`worker_us` is the worker's mean time per wave during the calls. Several short blocks are measured; the median block
counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pie_control.client import Client
from pie_control.client.running import Running

from ..support.guests import end_all, launch_many, source
from ..support.samples import median
from ..support.server import scheduler_counts, serving
from ..support.surroundings import demo_adapter, web_server

CONTROL_CALLS = {
    **dict.fromkeys(("now", "clock", "get_arg", "get_env", "available_models", "blob_names", "blob_size"), 100),
    **dict.fromkeys(("send", "wait", "push_tokens", "set_queue_priority", "sleep", "cancel", "receive"), 50),
    **dict.fromkeys(("get_model_info", "usage", "set_result", "log", "synchronize"), 20),
    **dict.fromkeys(("create_queue", "destroy_queue"), 20),
    **dict.fromkeys(("tokenize", "detokenize", "create_detokenizer", "destroy_detokenizer"), 20),
    **dict.fromkeys(("create_sampler", "destroy_sampler"), 5),
    **dict.fromkeys(("available_traits", "get_vocabs", "format_chat", "tokenize_chat"), 1),
    **dict.fromkeys(("alloc_kvpage", "reserve_kvpage", "dealloc_kvpage", "alloc_emb", "dealloc_emb"), 20),
    **dict.fromkeys(("copy_emb", "copy_kvpage", "set_positions"), 20),
    **dict.fromkeys(("sample_constrained", "sample_with_logprobs", "verify"), 20),
    **dict.fromkeys(("get_next_dists", "get_logprobs_at", "available_adapters"), 20),
    **dict.fromkeys(("forward_with_sampling", "forward_with_dist", "forward_with_mask"), 10),
    **dict.fromkeys(("forward_with_adapter", "forward_with_scores"), 10),
    **dict.fromkeys(("trim_kvpage", "mask_kvpage"), 4),
    **dict.fromkeys(("decode", "decode_with_matcher"), 2),
    **dict.fromkeys(("forward_with_adapter_and_scores", "forward_with"), 10),
    **dict.fromkeys(("export_kvpage", "import_kvpage", "unexport_kvpage", "list_exports"), 5),
    **dict.fromkeys(("grammar_matcher", "fork_matcher", "destroy_matcher", "grammar_mask", "grammar_accept"), 20),
    **dict.fromkeys(("grammar_rollback", "grammar_forced", "grammar_state"), 20),
    **dict.fromkeys(("grammar_compile", "destroy_grammar"), 5),
    **dict.fromkeys(("open_blob", "read_blob", "close_blob"), 20),
    **dict.fromkeys(("broadcast", "subscribe", "next_published", "unsubscribe"), 20),
    **dict.fromkeys(("send_child", "receive_child", "join"), 20),
    **dict.fromkeys(("http_request", "read_body", "close_body"), 4),
}
"""Calls in a block: few enough for one turn of the guest, so that no other inferlet comes between. `clock`: WASI's."""
ISSUED_CALLS = {"embed_txt": 20, "forward": 10, "sample": 20, "get_next_dist": 20, "get_logprobs": 20}
"""Calls in a block, for calls that also have a row of layer "inference"."""
INFERENCE_CALLS = 10
OUTSIDE, MOST_OUTSIDE = ("http_request", "read_body", "close_body"), 32
"""Calls, and the inferlets that make them at most: a host has 256 requests open at a time."""
LEFT_OUT = {
    "launch": "it starts an inferlet: see the benchmark of this name",
    "cancel_child": "it ends what `send_child` needs",
    "drop_child": "it is for a child that runs no more, which is another benchmark's",
    "continue_with_dist": "it waits for the worker: see the program `distributions` of the benchmark `scale`",
    "keep_body": "as `read_body`, but for the blob that it leaves",
    "watch_run": "once for a run of up to 512 tokens, beside `decode`",
    **dict.fromkeys(("num_embs_needed", "load_image", "drop_image", "embed_img"), "the demo model takes no images"),
    **dict.fromkeys(("made_ahead", "source"), "the interpreter's own, before a program runs"),
}
"""Functions without a row, and why. Nor have `take_` and `await_`: they are the way back in the layer "inference"."""


@dataclass(frozen=True)
class Plan:
    """Numbers of inferlets, and the number of blocks for each call: `blocks` over all inferlets together, but at least
    `least_blocks`. `tree`: the tree to serve from, if not this one.
    """

    inferlets: tuple[int, ...]
    blocks: int
    least_blocks: int
    tree: Path | None = None


FULL = Plan((1, 16, 64, 256), blocks=40, least_blocks=5)
QUICK = Plan((1, 16), blocks=10, least_blocks=3)


@dataclass(frozen=True)
class Row:
    """`waves_per_call`: waves that the worker ran during one call of each inferlet; 0 for layer "control"."""

    call: str
    layer: str
    inferlets: int
    us: float
    latency_us: float
    worker_us: float
    waves_per_call: float


@dataclass(frozen=True)
class _Block:
    """One block of calls of all inferlets; times in microseconds."""

    latency: float  # of the median inferlet: one that was preempted in its block says nothing about the call
    worker: float  # mean of the waves
    waves: float  # per call of one inferlet


async def run(plan: Plan) -> list[Row]:
    """Returns a row for every call, layer and number of inferlets."""
    with demo_adapter() as adapter:
        async with (
            web_server() as outside,
            serving(tree=plan.tree, adapter=f"adapter={adapter}", http_allow=outside) as server,
            Client(server.url) as client,
        ):
            program = await client.upload(source("call_costs"), "call_costs")
            return [row for number in plan.inferlets for row in await _rows(plan, client, program, number, outside)]


async def _rows(plan: Plan, client: Client, program: str, number: int, outside: str) -> list[Row]:
    running = await launch_many(client, program, number, f"http://{outside}/", blobs={"blob": bytes(1000)})
    blocks = max(plan.least_blocks, plan.blocks // number)
    rows = [await _measure(client, running, *order, blocks) for order in _orders(number)]
    await end_all(running)
    return rows


def _orders(inferlets: int) -> list[tuple[str, str, int]]:
    """All measurements: call, layer, and calls in a block."""
    issued = CONTROL_CALLS | ISSUED_CALLS
    return [
        *((call, "control", n) for call, n in issued.items() if inferlets <= MOST_OUTSIDE or call not in OUTSIDE),
        *((call, "inference", INFERENCE_CALLS) for call in ISSUED_CALLS),
    ]


async def _measure(client: Client, running: Sequence[Running], call: str, layer: str, calls: int, blocks: int) -> Row:
    order = json.dumps([call, layer, calls])
    measured = [await _block(client, running, order, calls) for _ in range(blocks + 1)][1:]  # the first warms up
    with_worker = layer == "inference"
    latency = median([block.latency for block in measured])
    return Row(
        call=call,
        layer=layer,
        inferlets=len(running),
        us=round(median([block.latency - with_worker * block.worker for block in measured]), 2),
        latency_us=round(latency, 2),
        worker_us=round(with_worker * median([block.worker for block in measured]), 2),
        waves_per_call=round(with_worker * median([block.waves for block in measured]), 2),
    )


async def _block(client: Client, running: Sequence[Running], order: str, calls: int) -> _Block:
    before = await _worker(client)
    nanoseconds = await asyncio.gather(*(_order(one, order) for one in running))
    after = await _worker(client)
    waves = after["waves"] - before["waves"]
    seconds = after["worker_seconds"] - before["worker_seconds"]
    return _Block(median(nanoseconds) / 1e3, 1e6 * seconds / max(waves, 1), waves / calls)


async def _order(running: Running, order: str) -> float:
    await running.send(order)
    while not (answer := await running.receive()):
        pass  # an empty message is one of the measured `send`
    return float(answer)


async def _worker(client: Client) -> dict[str, Any]:
    """The scheduler's counts."""
    return scheduler_counts(await client.statistics())
