"""How many requests a second does each batching policy give (Table 5)?

128 inferlets at a time make requests, over and over, beside a paced worker, which takes `wave_ms` for each wave and
`token_us` for each of its input tokens, as a GPU does. The program, in Rust, reads each distribution and chooses, by a
call for each token, as the paper's do. (One that generates by one call gives the same ratios.) A policy is measured
from the moment at which each inferlet has ended a request until each has ended another one, and for `seconds` at least:
whole requests, for a policy that sends one command at a time gives all of them their prompts first.

The pace is that of the paper's Table 4. vLLM's times per token with 1B, 3B and 8B, for 32 sequences, lie within 0.2 ms
of a line over the size of their weights in bfloat16 (2.47, 6.43 and 16.06 GB): 8.1 ms, and 3.48 ms for each GB, which
is 287 GB a second of an L4's 300. So each wave of the 1B model takes 8.6 ms for its weights, and what does not depend
on them is 0.25 ms for each of the 32 sequences. (Were a part of this the wave's, batches would gain more.) The paper
says neither the model of Table 5, nor K, nor T: K-only has its share of Adaptive's requests (0.355) with 11 to 13
commands.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from pie_control.client import Client

from ..report import noted
from ..support.guests import program_of
from ..support.server import scheduler_counts, serving

PAPER = {"eager": 5.61, "k-only": 30.09, "t-only": 78.11, "adaptive": 84.85}
"""Requests a second, on an L4."""


@dataclass(frozen=True)
class Plan:
    """`inferlets` at a time for `seconds`, each with a prompt of `prompt` tokens and `tokens` more. `k`: commands that
    K-only sends at a time; `t_ms`: milliseconds that T-only waits."""

    k: tuple[int, ...]
    t_ms: tuple[int, ...]
    inferlets: int = 128
    prompt: int = 2
    tokens: int = 16
    wave_ms: float = 8.6
    token_us: int = 250
    seconds: float = 10.0


FULL = Plan(k=(8, 32), t_ms=(5, 20))
QUICK = Plan(k=(8,), t_ms=(5,), tokens=8, seconds=4.0)


@dataclass(frozen=True)
class Row:
    """`batch`: input tokens in a wave. `adaptive_over`: requests a second of the policy adaptive over this one's;
    `paper_over`: the same in the paper."""

    policy: str
    requests_s: float
    batch: float
    adaptive_over: float
    paper_over: float


async def run(plan: Plan) -> list[Row]:
    """A row for each policy."""
    policies: list[tuple[str, dict[str, Any]]] = [("adaptive", {}), ("eager", {})]
    policies += [("k-only", {"k_only_commands": k}) for k in plan.k]
    policies += [("t-only", {"t_only_seconds": t / 1e3}) for t in plan.t_ms]
    rows: list[Row] = []
    best = 0.0
    for name, options in policies:
        rate, batch = await _measure(plan, name, options)
        best = best or rate
        label = f"{name} {value}" if (value := next(iter(options.values()), "")) else name
        over = round(PAPER["adaptive"] / PAPER[name], 2)
        rows.append(noted(Row(label, round(rate, 2), round(batch, 1), round(best / rate, 2), over)))
    return rows


async def _measure(plan: Plan, policy: str, options: dict[str, Any]) -> tuple[float, float]:
    """Requests a second, and input tokens of a wave."""
    settings = {
        "model": "paced=demo",
        "worker": f"paced:{plan.wave_ms}ms+{plan.token_us}us",
        "policy": policy,
        "max_inferlets": 2 * plan.inferlets,
        "max_inferlets_per_client": 2 * plan.inferlets,
        **options,
    }
    async with serving(**settings) as server, Client(server.url) as client:
        uploaded = await client.upload(program_of("rust", "requests"), "requests")
        done = [0] * plan.inferlets
        ended = asyncio.Event()

        async def one_after_the_other(number: int) -> None:
            while True:
                await client.run(uploaded, str(plan.prompt), str(plan.tokens))
                done[number] += 1
                ended.set()

        async def each_has_ended(requests: int) -> None:
            while min(done) < requests:
                ended.clear()
                await ended.wait()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one_after_the_other(number)) for number in range(plan.inferlets)]
            await each_has_ended(1)
            before, start = scheduler_counts(await client.statistics()), time.perf_counter()
            requests = min(done) + 1
            await asyncio.sleep(plan.seconds)
            await each_has_ended(requests)
            after, seconds = scheduler_counts(await client.statistics()), time.perf_counter() - start
            for task in tasks:
                task.cancel()
    ran = after["input_tokens"] - before["input_tokens"]
    each = plan.prompt + plan.tokens - 1  # the last token is no input
    return ran / each / seconds, ran / max(1, after["waves"] - before["waves"])
