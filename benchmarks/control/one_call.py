"""How long is the way of one call of the inference layer, from the program to the worker and back?

One inferlet makes one call after the other, each alone in its wave, beside a paced worker whose time is subtracted.
Servers of all kinds measure in turns. What the processes take of the processor for a call is told beside it: where
little more time passes than that, the way is computing, and else waiting for processes to wake up.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from pie_control.client import Client
from pie_control.client.running import Running

from ..support.guests import source
from ..support.processes import processor_seconds
from ..support.samples import percentile
from ..support.server import Server, serving


@dataclass(frozen=True)
class Plan:
    """Of `calls`, `count` of each in each of `rounds` rounds, on servers with these numbers of `hosts`, beside a worker
    that takes `pace_us` for a wave. `tree`: the tree to serve from, if not this one."""

    calls: tuple[str, ...] = ("sample", "get_next_dist")
    hosts: tuple[int, ...] = (0, 1)
    count: int = 300
    rounds: int = 5
    pace_us: int = 1000
    tree: Path | None = None


FULL = Plan()
QUICK = Plan(calls=("sample",), count=100, rounds=2)


@dataclass(frozen=True)
class Row:
    """Microseconds of a call: `way_us` passes beside the worker's time, and so do `best_us` for one in ten calls at
    most. `control_us`, `hosts_us` and `worker_us` are processor time; with `hosts` 0, control has that of hosts."""

    call: str
    hosts: int
    way_us: float
    best_us: float
    control_us: float
    hosts_us: float
    worker_us: float


@dataclass
class _Target:
    """A server with its inferlet, and what was measured, by call."""

    hosts: int
    server: Server
    running: Running
    times: dict[str, list[float]] = field(default_factory=dict)
    used: dict[str, list[dict[str, float]]] = field(default_factory=dict)


async def run(plan: Plan) -> list[Row]:
    """One row for each call and kind of server."""
    async with AsyncExitStack() as stack:
        targets = [await _target(stack, plan, hosts) for hosts in plan.hosts]
        for target, call in product(targets, plan.calls):
            await _calls(target.running, call, plan.count)  # warms up
        for _, call, target in product(range(plan.rounds), plan.calls, targets):
            await _round(target, call, plan.count)
    return [_row(target, call, plan) for call, target in product(plan.calls, targets)]


async def _target(stack: AsyncExitStack, plan: Plan, hosts: int) -> _Target:
    settings = {"worker": f"paced:{plan.pace_us}us", "hosts": hosts, "warm_pool": 0}
    server = await stack.enter_async_context(serving(tree=plan.tree, cpu_seconds=1e6, **settings))
    client = await stack.enter_async_context(Client(server.url))
    running = await client.launch(await client.upload(source("one_call"), "one_call"))
    await running.receive()
    return _Target(hosts, server, running)


async def _calls(running: Running, call: str, count: int) -> list[float]:
    """Microseconds of each."""
    await running.send(json.dumps([call, count]))
    return [nanoseconds / 1e3 for nanoseconds in json.loads(await running.receive())]


async def _round(target: _Target, call: str, count: int) -> None:
    before = processor_seconds(target.server.pid)
    target.times.setdefault(call, []).extend(await _calls(target.running, call, count))
    after = processor_seconds(target.server.pid)
    target.used.setdefault(call, []).append({part: 1e6 * (after[part] - before[part]) / count for part in after})


def _row(target: _Target, call: str, plan: Plan) -> Row:
    best, middle = (percentile(target.times[call], percent) - plan.pace_us for percent in (10, 50))
    used = {
        part: round(percentile([one.get(part, 0.0) for one in target.used[call]], 50), 1)
        for part in ("control", "hosts", "worker")
    }
    return Row(call, target.hosts, round(middle, 1), round(best, 1), *used.values())
