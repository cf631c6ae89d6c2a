"""How long does it take from the launch of an inferlet to its first message, with some launched at once?

Warm: the program was uploaded and run before. Cold: each launch uploads and runs a program that the server has never
seen. Between rounds the server rests until its pool of ready guests is full, and has freed those that ended. With 896
Python guests that takes about 7 s on a machine that does nothing else; they hold 1.3 GB, and a server gives them at
most an eighth of the memory for inferlets. A first round of each row does not count: by it the server learns how many
launches come together. Each row is told on stderr.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from pie_control.client import Client
from pie_control.client.running import Running
from pie_control.config import ServerConfig

from ..plans import MAY_BE_ZERO
from ..report import noted
from ..support.guests import GUESTS, program_of, source
from ..support.samples import percentile
from ..support.server import serving

NAME = "first_message"
"""The program."""
REST_SECONDS = 0.05
FREEING_SECONDS = 0.001
"""Of rest for each launch of the round before: what a server takes to free an inferlet that has ended, and more."""
_fresh = count()


@dataclass(frozen=True)
class Plan:
    """A row for each number of launches at once in `warm` and in `cold`, of `launches` launches in at least
    `least_rounds` rounds, with at least `warm_pool` ready guests before each, on `hosts` application hosts; -1: as many
    as a server starts by itself. `tree`: the tree to serve from, if not this one."""

    warm: tuple[int, ...]
    cold: tuple[int, ...]
    launches: int
    least_rounds: int
    warm_pool: int = field(default=ServerConfig().warm_pool, metadata=MAY_BE_ZERO)
    tree: Path | None = None
    hosts: int = -1

    @property
    def settings(self) -> dict[str, Any]:
        """Of the server."""
        bound = max((*self.warm, *self.cold, ServerConfig().max_inferlets_per_client))
        own = {"warm_pool": self.warm_pool, "max_inferlets_per_client": bound}
        return own | ({"hosts": self.hosts} if self.hosts >= 0 else {})


FULL = Plan(warm=(1, 16, 64, 256, 896), cold=(1, 16, 64), launches=200, least_rounds=3)
QUICK = Plan(warm=(1, 16, 64), cold=(1,), launches=20, least_rounds=1, warm_pool=64)
"""Making the guests ahead takes most of the time: a server that is empty makes one in about 7 ms."""


@dataclass(frozen=True)
class Row:
    """`launches`: how many were measured. Times are for one launch."""

    guest: str
    concurrent: int
    warm: bool
    p50_ms: float
    p99_ms: float
    launches: int


async def run(plan: Plan) -> list[Row]:
    """A row for each guest and number of launches at once."""
    async with serving(tree=plan.tree, **plan.settings) as server, Client(server.url) as client:
        rows = []
        for guest in (*GUESTS, "rust"):
            program = await client.upload(program_of(guest, NAME), NAME)
            start = partial(client.launch, program)
            await _round(client, 1, start, plan)
            rows += [await _row(guest, client, number, True, start, plan) for number in plan.warm]
        fresh = partial(_launch_fresh, client)
        return rows + [await _row("python", client, number, False, fresh, plan) for number in plan.cold]


async def _row(guest: str, client: Client, concurrent: int, warm: bool, start: Start, plan: Plan) -> Row:
    times = await _measure(client, concurrent, start, plan)
    p50, p99 = (round(1e3 * percentile(times, percent), 2) for percent in (50, 99))
    return noted(Row(guest, concurrent, warm, p50, p99, len(times)))


Start = Callable[[], Awaitable[Running]]


async def _launch_fresh(client: Client) -> Running:
    """Launches a program that the server has never seen."""
    program = source(NAME) + f"# {next(_fresh)}\n".encode()
    return await client.launch(await client.upload(program, NAME))


async def _missing_guests(client: Client, least: int) -> int:
    """How many fewer wait for a launch than the server wants, or than `least`."""
    counts = (await client.statistics())["inferlets"]
    return int(max(counts["warm_wanted"], least) - counts["warm"])


async def _measure(client: Client, concurrent: int, start: Start, plan: Plan) -> list[float]:
    rounds = max(plan.least_rounds, plan.launches // concurrent)
    await _round(client, concurrent, start, plan)  # from now on the pool of ready guests is as large as this takes
    return [seconds for _ in range(rounds) for seconds in await _round(client, concurrent, start, plan)]


async def _round(client: Client, concurrent: int, start: Start, plan: Plan) -> list[float]:
    while await _missing_guests(client, plan.warm_pool) > 0:
        await asyncio.sleep(REST_SECONDS)
    await asyncio.sleep(FREEING_SECONDS * concurrent)
    return list(await asyncio.gather(*(_time_to_first_message(start) for _ in range(concurrent))))


async def _time_to_first_message(start: Start) -> float:
    """Seconds from launch to first message; returns once the inferlet has ended."""
    began = time.perf_counter()
    running = await start()
    await running.receive()
    elapsed = time.perf_counter() - began
    await running.result()
    return elapsed
