"""How much memory does the server need for an inferlet that waits for a message?

It needs Linux. Numbers of inferlets that do not fit into the memory are left out.
"""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pie_control.client import Client
from pie_control.config import ServerConfig

from ..plans import MAY_BE_ZERO
from ..support.guests import GUESTS, launch_many, program_of
from ..support.processes import of_part
from ..support.server import Server, serving

AT_ONCE = 64
SETTLE_SECONDS = 1.0
EXPECTED_MB = 12
"""Memory to expect for one inferlet: a step that does not fit the machine's memory is left out."""


@dataclass(frozen=True)
class Plan:
    """Numbers of idle `inferlets`; ready guests in the pool. `tree`: the tree to serve from, if not this
    one."""

    inferlets: tuple[int, ...]
    warm_pool: int = field(default=ServerConfig().warm_pool, metadata=MAY_BE_ZERO)
    tree: Path | None = None


FULL = Plan((64, 256, 1000))
QUICK = Plan((16, 64))


@dataclass(frozen=True)
class Row:
    """In 10^6 bytes: `server_mb`, the proportional set sizes of the control process and the hosts, and `mb_each`, how
    much these have grown for each inferlet."""

    guest: str
    inferlets: int
    mb_each: float
    server_mb: float


async def run(plan: Plan) -> list[Row]:
    """One row for each kind of guest and number of inferlets."""
    return [row for guest in GUESTS for row in await _run_guest(guest, plan)]


async def _run_guest(guest: str, plan: Plan) -> list[Row]:
    numbers, warm = sorted(plan.inferlets), plan.warm_pool
    most = numbers[-1] + 1
    async with (
        serving(tree=plan.tree, max_inferlets=most, max_inferlets_per_client=most, warm_pool=warm) as server,
        Client(server.url) as client,
    ):
        program = await client.upload(program_of(guest, "idle"), "idle")
        await _warm_up(client, program)
        empty = await _settled_mb(client, server)
        rows: list[Row] = []
        for number in numbers:
            present = rows[-1].inferlets if rows else 0
            if not _fits(number - present):
                break
            await _launch(client, program, number - present, warm)
            used = await _settled_mb(client, server)
            rows.append(Row(guest, number, round((used - empty) / number, 3), round(used, 1)))
        return rows


async def _warm_up(client: Client, program: str) -> None:
    """Runs one inferlet first, because the memory that it makes the server load does not belong to the inferlets."""
    for running in await launch_many(client, program, 1):
        await running.send("")
        await running.result()


async def _launch(client: Client, program: str, number: int, warm_pool: int) -> None:
    """So few at a time that the pool of ready guests does not grow for it."""
    at_once = min(AT_ONCE, warm_pool) or AT_ONCE
    for first in range(0, number, at_once):
        await _await_guests(client)
        await launch_many(client, program, min(at_once, number - first))


async def _await_guests(client: Client) -> None:
    """Until the pool of ready guests is full."""
    while (found := (await client.statistics())["inferlets"])["warm"] < found["warm_wanted"]:
        await asyncio.sleep(0.05)


async def _settled_mb(client: Client, server: Server) -> float:
    """Memory of the control process and the hosts, once the pool of ready guests, which counts as theirs, is full."""
    await _await_guests(client)
    await asyncio.sleep(SETTLE_SECONDS)
    processes = (server.pid, *of_part(server.pid, "hosts"))
    return sum(_kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in processes) * 1024 / 1e6


def _fits(more: int) -> bool:
    available = _kilobytes(Path("/proc/meminfo"), "MemAvailable") / 1024
    if available < more * EXPECTED_MB:
        print(f"left out: {more} more inferlets do not fit {available:.0f} MB", file=sys.stderr)
        return False
    return True


def _kilobytes(file: Path, name: str) -> int:
    found = re.search(rf"^{name}: +(\d+) kB", file.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{file} has no entry {name}: this benchmark needs Linux")
    return int(found[1])
