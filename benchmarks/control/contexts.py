"""What do forks and shared prompts cost?

A fork's time as its program sees it, on a stand-in for a GPU; the processor time of forks, of their first tokens and of
closing them, in the control process and in the application host, which runs the program too; what the worker computes
for the first tokens of all forks; as many live forks as are wanted in one inferlet. And the time to the first token of
a second program with the same prompt over that of the first one, on the demo model, on the CPU.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pie_control.client import Client

from ..support.guests import source
from ..support.processes import processor_seconds
from ..support.samples import median
from ..support.server import scheduler_counts, serving


@dataclass(frozen=True)
class Plan:
    """Tokens of the prompt, live forks, and samples of each."""

    prompt: int
    forks: int
    samples: int


FULL = Plan(1000, 1000, 5)
QUICK = Plan(1000, 1000, 3)


PHASES = ("fork", "first token of a fork", "close of a fork")
COSTED = 1000
"""Forks of the program in mode "cost"."""


@dataclass(frozen=True)
class Row:
    """`value` in what `unit` says."""

    measure: str
    value: float
    unit: str
    reach: str


async def run(plan: Plan) -> list[Row]:
    """All measures, on two servers."""
    async with serving(model="paced=demo", worker="paced:5ms", hosts=0) as server, Client(server.url) as client:
        program = await client.upload(source("contexts"), "contexts")
        forks = [await _fork(client, program, plan.prompt) for _ in range(plan.samples)]
        alive = await (await client.launch(program, "live", str(plan.forks))).result()
    async with serving(model="paced=demo", worker="paced:5ms", hosts=1) as server, Client(server.url) as client:
        program = await client.upload(source("contexts"), "contexts")
        costs = [await _costs(client, server.pid, program, plan.prompt) for _ in range(plan.samples)]
    async with serving(model="demo", device="cpu", hosts=0) as server, Client(server.url) as client:
        program = await client.upload(source("contexts"), "contexts")
        await _first(client, program, plan.prompt, 999, share=False)  # compiles, loads
        pairs = [
            [await _first(client, program, plan.prompt, seed, share=True) for _ in range(2)]
            for seed in range(plan.samples)
        ]
        alone = [await _first(client, program, plan.prompt, 50 + seed, share=False) for seed in range(plan.samples)]
    return [
        Row("fork", round(median([one[0] for one in forks]) * 1e3, 4), "ms", "<= 0.1"),
        *_cost_rows(costs),
        Row("tokens_run for the first token of a fork", max(one[1] for one in forks), "tokens", "0"),
        Row("live forks", alive, "contexts", f"{plan.forks}"),
        Row("second over first", round(median([pair[1] / pair[0] for pair in pairs]), 3), "x", "<= 0.2"),
        Row("first over one that does not share", round(median([p[0] for p in pairs]) / median(alone), 3), "x", "~ 1"),
    ]


async def _fork(client: Client, program: str, tokens: int) -> tuple[float, float]:
    """Seconds of a fork, and input tokens that the first tokens of all forks took."""
    running = await client.launch(program, "fork", str(tokens))
    await running.receive()
    before = scheduler_counts(await client.statistics())["input_tokens"]
    await running.send("")
    seconds, _ = await running.result()
    await asyncio.sleep(0.1)
    return seconds, scheduler_counts(await client.statistics())["input_tokens"] - before


async def _costs(client: Client, pid: int, program: str, tokens: int) -> list[dict[str, float]]:
    """Seconds of processor time that each phase of "cost" takes in each process."""
    running = await client.launch(program, "cost", str(tokens))
    await running.receive()
    found, before = [], processor_seconds(pid)
    for _ in PHASES:
        await running.send("")
        await running.receive()
        after = processor_seconds(pid)
        found.append({part: after[part] - before[part] for part in after})
        before = after
    await running.send("")
    await running.result()
    return found


def _cost_rows(costs: list[list[dict[str, float]]]) -> list[Row]:
    """Milliseconds for each of the forks, by phase and process: the least of the samples, since other work on the
    machine only adds to it. A fork and the first token of the child together are to take 0.1 ms of the control
    process."""
    rows = []
    for place, phase in enumerate(PHASES):
        for part, reach in (("control", "<= 0.1"), ("hosts", "")):
            seconds = min(one[place][part] for one in costs)
            rows.append(Row(f"{phase}: processor time of {part}", round(seconds * 1e3 / COSTED, 4), "ms", reach))
    return rows


async def _first(client: Client, program: str, tokens: int, seed: int, share: bool) -> float:
    arguments = f"tokens={tokens}", f"seed={seed}", f"share={str(share).lower()}"
    running = await client.launch(program, "first", *arguments)
    found: float = await running.result()
    return found
