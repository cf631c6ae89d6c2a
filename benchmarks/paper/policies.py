"""How many requests a second does each batching policy give (Table 5)?

128 inferlets at a time complete a text each, over and over, beside a paced worker, which takes `wave_ms` for each wave
and `token_us` for each of its input tokens, as a GPU does. `run`: a program generates by one call; `calls`: it reads
each distribution and chooses. Requests are counted by the tokens that the worker ran: each takes the same number.
K-only and T-only have each of the given sizes and times; the paper does not say which ones it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

from pie_control.client import Client

from ..plans import refuse_unknown
from ..support.guests import source
from ..support.server import scheduler_counts, serving

PROGRAMS = ("run", "calls")
PAPER = {"eager": 5.61, "k-only": 30.09, "t-only": 78.11, "adaptive": 84.85}
"""Requests a second, of an 8B model on an L4."""


@dataclass(frozen=True)
class Plan:
    """`inferlets` at a time for `seconds`, each with a prompt of `prompt` tokens and `tokens` more. `k`: commands that
    K-only waits for; `t_ms`: milliseconds that T-only waits."""

    programs: tuple[str, ...]
    k: tuple[int, ...]
    t_ms: tuple[int, ...]
    inferlets: int = 128
    prompt: int = 16
    tokens: int = 32
    wave_ms: int = 15
    token_us: int = 20
    seconds: float = 10.0
    warm_up: float = 2.0  # seconds before

    def __post_init__(self) -> None:
        refuse_unknown("program", self.programs, PROGRAMS)


FULL = Plan(PROGRAMS, k=(8, 32, 64), t_ms=(5, 20, 50))
QUICK = Plan(("run",), k=(8,), t_ms=(5,), seconds=4.0)


@dataclass(frozen=True)
class Row:
    """`batch`: input tokens in a wave. `adaptive_over`: requests a second of the policy adaptive over this one's;
    `paper_over`: the same in the paper."""

    program: str
    policy: str
    requests_s: float
    batch: float
    adaptive_over: float
    paper_over: float


async def run(plan: Plan) -> list[Row]:
    """A row for each program and policy."""
    policies: list[tuple[str, dict[str, Any]]] = [("adaptive", {}), ("eager", {})]
    policies += [("k-only", {"k_only_commands": k}) for k in plan.k]
    policies += [("t-only", {"t_only_seconds": t / 1e3}) for t in plan.t_ms]
    rows: list[Row] = []
    for program in plan.programs:
        measured = [(name, options, await _measure(plan, program, name, options)) for name, options in policies]
        best = measured[0][2][0]
        for name, options, (rate, batch) in measured:
            label = f"{name} {value}" if (value := next(iter(options.values()), "")) else name
            over = round(PAPER["adaptive"] / PAPER[name], 2)
            rows.append(Row(program, label, round(rate, 2), round(batch, 1), round(best / rate, 2), over))
    return rows


async def _measure(plan: Plan, program: str, policy: str, options: dict[str, Any]) -> tuple[float, float]:
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
        uploaded = await client.upload(source("requests"), "requests")

        async def one_after_the_other() -> None:
            while True:
                await client.run(uploaded, program, str(plan.prompt), str(plan.tokens))

        tasks = [asyncio.create_task(one_after_the_other()) for _ in range(plan.inferlets)]
        try:
            await asyncio.sleep(plan.warm_up)
            before, start = scheduler_counts(await client.statistics()), time.perf_counter()
            await asyncio.wait(tasks, timeout=plan.seconds, return_when=asyncio.FIRST_EXCEPTION)
            after, seconds = scheduler_counts(await client.statistics()), time.perf_counter() - start
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)
    ran = after["input_tokens"] - before["input_tokens"]
    each = plan.prompt + plan.tokens - (program == "run")  # the last token of a run is not an input
    return ran / each / seconds, ran / max(1, after["waves"] - before["waves"])
