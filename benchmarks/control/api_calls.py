"""What does a call cost an inferlet, with some inferlets calling at the same time (paper, Figure 10)?

Layer "control": processor time until the call returns, minus that which the guest itself takes for it (`guest_us`), so
that what the control layer takes remains. Layer "inference": time until its value or effect is there, minus the
worker's own time, so that the way there and back remains: `us` = `latency_us` - `worker_us`, where `worker_us` is the
worker's mean time per wave during the calls. Several short blocks are measured; the median block counts. Each row is
told on stderr: all calls of 896 inferlets take some minutes. Every function of the WIT files has a row, but for those
that `LEFT_OUT` names with the reason.
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
from pie_control.resources.exports.exports import MOST_EXPORTS

from ..plans import refuse_unknown
from ..report import noted
from ..support.guests import end_all, launch_many, program_of
from ..support.samples import median
from ..support.server import scheduler_counts, serving
from ..support.surroundings import demo_adapter, web_server

BLOCK = 20
"""Calls in a block, where nothing else is said: what a block pays once, since the processor's caches are full of other
inferlets', is shared by as many in each row."""
CONTROL_CALLS = (
    "clock", "get_arg", "get_env", "available_models", "blob_names", "send", "wait",
    "push_tokens", "set_queue_priority", "sleep", "cancel", "receive", "get_model_info", "usage", "set_result", "log",
    "synchronize", "create_queue", "tokenize", "detokenize", "create_detokenizer",
    "create_sampler", "drop", "format_chat", "tokenize_chat",
    "get_vocabs", "alloc", "dealloc", "copy_emb",
    "copy_kvpage", "set_positions", "trim_kvpage", "mask_kvpage", "shift_kvpage", "verify", "decode",
    "export_kvpage", "import_kvpage", "unexport_kvpage", "list_exports",
    "export_prefix", "import_prefix", "fork_matcher",
    "grammar_mask", "grammar_rollback", "grammar_forced", "grammar_state",
    "open_matcher", "advance_matcher", "open_blob", "read_blob",
    "broadcast", "subscribe", "join", "http_request",
    "read_body",
)  # fmt: skip
"""`clock`: WASI's."""
ISSUED_CALLS = ("embed_txt", "forward", "sample", "get_next_dist", "get_logprobs", "get_embedding")
"""Calls that also have a row of layer "inference"."""
SHORT_BLOCKS = {
    **dict.fromkeys(("format_chat", "tokenize_chat", "http_request", "read_body"), 4),
    **dict.fromkeys(("export_kvpage", "import_kvpage", "unexport_kvpage", "list_exports"), 5),
    **dict.fromkeys(("export_prefix", "import_prefix"), 5),
    "decode": 8,
    "get_vocabs": 1,
}
"""Calls in a block, where BLOCK would hold too much, or take too long."""
EXPORTING, OWN_EXPORTS = ("export_kvpage", "unexport_kvpage"), 2
"""Calls whose blocks hold an export for each call, and exports that each inferlet has beside: a tenant has a bound."""
INFERENCE_CALLS = 10
RUST_CALLS = (
    "get_arg", "get_env", "available_models", "blob_names", "usage", "get_model_info", "send", "set_result", "log",
    "sleep", "receive", "synchronize", "set_queue_priority", "tokenize", "detokenize", "push_tokens", "create_sampler",
    "alloc", "set_positions", "embed_txt", "forward", "sample", "get_next_dist",
)  # fmt: skip
"""Calls that also have a row of a guest in Rust, in layer "control": it has no clock for the other one."""
OUTSIDE, MOST_OUTSIDE = ("http_request", "read_body"), 32
"""Calls, and the inferlets that make them at most: a host has 256 requests open at a time."""
SETTINGS = {"cpu_seconds": 1e6, "cpu_refill": 0, "max_inferlets": 2000, "max_inferlets_per_client": 2000}
"""Settings with which the processor time of an inferlet only grows, and 896 inferlets and their children may run."""
LEFT_OUT = {
    "launch": "it starts an inferlet: see the benchmark of this name",
    "cancel_child": "it ends what `join` waits for",
    "continue_with_dist": "it waits for the worker: see the program `distributions` of the benchmark `scale`",
    "keep_body": "as `read_body`, but for the blob that it leaves",
    "pin_exports": "once for a text that is kept, as `export_prefix`",
    **dict.fromkeys(("keep_state", "drop_state", "find_state", "forward_draft"), "the demo model keeps no states"),
    "span": "once for a tool that ran",
    "watch_run": "once for a run of up to 512 tokens, beside `decode`",
    **dict.fromkeys(("num_embs_needed", "load_image", "embed_img"), "the demo model takes no images"),
    **dict.fromkeys(("source", "read", "put_code"), "the interpreter's own, before a program runs"),
}
"""Functions without a row, and why. Nor have `take_` and `await_`: they are the way back in the layer "inference"."""


@dataclass(frozen=True)
class Plan:
    """Numbers of inferlets, and the number of blocks for each call: `blocks` over all inferlets together, but at least
    `least_blocks`. `calls`: only these, in layer "control"; empty: all. `tree`: the tree to serve from, if not this
    one.
    """

    inferlets: tuple[int, ...]
    blocks: int
    least_blocks: int
    calls: tuple[str, ...] = ()
    tree: Path | None = None

    def __post_init__(self) -> None:
        refuse_unknown("call", self.calls, (*CONTROL_CALLS, *ISSUED_CALLS))


FULL = Plan((1, 16, 64, 256, 896), blocks=40, least_blocks=3)
QUICK = Plan((1, 16), blocks=10, least_blocks=3)


@dataclass(frozen=True)
class Row:
    """`latency_us` is processor time in layer "control", where `worker_us` and `waves_per_call` are 0; `guest_us` is 0
    in layer "inference", and for a guest in Rust, whose own time is part of `us`. `waves_per_call`: waves that the
    worker ran during one call of each inferlet."""

    guest: str
    call: str
    layer: str
    inferlets: int
    us: float
    latency_us: float
    guest_us: float
    worker_us: float
    waves_per_call: float


@dataclass(frozen=True)
class _Block:
    """One block of calls of all inferlets; times in microseconds."""

    latency: float  # of the median inferlet, as the two behind it
    guest: float
    rest: float  # without the guest's part
    worker: float  # mean of the waves
    waves: float  # per call of one inferlet


async def run(plan: Plan) -> list[Row]:
    """Returns a row for every call, layer and number of inferlets."""
    with demo_adapter() as adapter:
        async with (
            web_server() as outside,
            serving(tree=plan.tree, adapter=f"adapter={adapter}", http_allow=outside, **SETTINGS) as server,
            Client(server.url) as client,
        ):
            rows = []
            for guest in ("python", "rust"):
                program = await client.upload(program_of(guest, "call_costs"), "call_costs")
                for number in plan.inferlets:
                    rows += await _rows(plan, client, guest, program, number, outside)
            return rows


async def _rows(plan: Plan, client: Client, guest: str, program: str, number: int, outside: str) -> list[Row]:
    running = await launch_many(client, program, number, f"http://{outside}/", blobs={"blob": bytes(1000)})
    blocks = max(plan.least_blocks, plan.blocks // number)
    orders = [one for one in _orders(number) if not plan.calls or (one[0] in plan.calls and one[1] == "control")]
    if guest == "rust":
        orders = [one for one in orders if one[0] in RUST_CALLS and one[1] == "control"]
    rows = [await _measure(client, guest, running, *order, blocks) for order in orders]
    await end_all(running)
    return rows


def _orders(inferlets: int) -> list[tuple[str, str, int]]:
    """All measurements: call, layer, and calls in a block."""
    room = MOST_EXPORTS // inferlets - OWN_EXPORTS
    lengths = SHORT_BLOCKS | {call: min(SHORT_BLOCKS[call], room) for call in EXPORTING}
    left_out = [*(OUTSIDE if inferlets > MOST_OUTSIDE else ()), *(EXPORTING if room < 1 else ())]
    issued = [call for call in (*CONTROL_CALLS, *ISSUED_CALLS) if call not in left_out]
    return [
        *((call, "control", lengths.get(call, BLOCK)) for call in issued),
        *((call, "inference", INFERENCE_CALLS) for call in ISSUED_CALLS),
    ]


async def _measure(
    client: Client, guest: str, running: Sequence[Running], call: str, layer: str, calls: int, blocks: int
) -> Row:
    order = json.dumps([call, layer, calls])
    measured = [await _block(client, running, order, calls) for _ in range(blocks + 1)][1:]  # the first warms up
    with_worker = layer == "inference"
    latency = median([block.latency for block in measured])
    row = Row(
        guest=guest,
        call=call,
        layer=layer,
        inferlets=len(running),
        us=round(median([block.rest - with_worker * block.worker for block in measured]), 2),
        latency_us=round(latency, 2),
        guest_us=round(median([block.guest for block in measured]), 2),
        worker_us=round(with_worker * median([block.worker for block in measured]), 2),
        waves_per_call=round(with_worker * median([block.waves for block in measured]), 2),
    )
    return noted(row)


async def _block(client: Client, running: Sequence[Running], order: str, calls: int) -> _Block:
    before = await _worker(client)
    times = await asyncio.gather(*(_order(one, order) for one in running))
    after = await _worker(client)
    waves = after["waves"] - before["waves"]
    seconds = after["worker_seconds"] - before["worker_seconds"]
    latency, guest = median([one for one, _ in times]), median([own for _, own in times])
    rest = median([one - own for one, own in times])
    return _Block(latency / 1e3, guest / 1e3, rest / 1e3, 1e6 * seconds / max(waves, 1), waves / calls)


async def _order(running: Running, order: str) -> tuple[float, float]:
    """Nanoseconds of a call, and of these the guest's own."""
    await running.send(order)
    while not (answer := await running.receive()):
        pass  # an empty message is one of the measured `send`
    in_all, own = json.loads(answer)
    return in_all, own


async def _worker(client: Client) -> dict[str, Any]:
    """The scheduler's counts."""
    return scheduler_counts(await client.statistics())
