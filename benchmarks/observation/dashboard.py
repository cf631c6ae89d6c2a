"""What does a viewer of the dashboard cost a server with a thousand inferlets, and when does it see them?

A server beside a paced worker has `inferlets`, of which `generating` generate without end and the others wait. Its
processor time, of the control process and its hosts, is taken in turns without and with a viewer that reads
`/v1/dashboard`. Then the page is opened in a headless Chromium, where one is. It needs Linux.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from pie_control.client import Client
from testing.browser import chromium, find_chromium

from ..support.processes import processor_seconds
from ..support.samples import median
from ..support.server import serving

PROGRAM = b"""
from inferlet_sdk import Context

async def main(args, generates="no"):
    await args.send("here")
    while generates == "yes":
        context = Context(args.model)
        context.fill("abc")
        await context.generate_until(max_tokens=200)
    await args.receive()
"""
AT_ONCE = 16
"""Launches."""
SHOWN = "document.querySelectorAll('.scroll tbody tr').length > 1"
PAINT = "performance.getEntriesByType('paint').find((one) => one.name === 'first-contentful-paint')?.startTime ?? null"


@dataclass(frozen=True)
class Plan:
    """`generating` of the `inferlets` generate, a wave takes `step_ms`; `rounds` times `seconds` without and with a
    viewer."""

    inferlets: int = 1000
    generating: int = 64
    step_ms: int = 50
    seconds: float = 8.0
    rounds: int = 3


FULL = Plan()
QUICK = Plan(inferlets=16, generating=4, seconds=0.5, rounds=1)


@dataclass(frozen=True)
class Row:
    """Percent of a processor: of the server without a viewer, and what a viewer adds, the median of the rounds;
    `control_percent` and `hosts_percent` are its parts. Milliseconds from opening the page to its first paint, and
    until it shows inferlets; None: there is no Chromium."""

    inferlets: int
    generating: int
    without_percent: float
    viewer_percent: float
    control_percent: float
    hosts_percent: float
    paint_ms: float | None
    shown_ms: float | None


async def run(plan: Plan) -> list[Row]:
    """One row."""
    settings: dict[str, Any] = {"model": "paced=demo", "worker": f"paced:{plan.step_ms}ms", "hosts": 1, "warm_pool": 0}
    async with (
        serving(**settings, max_inferlets_per_client=2 * plan.inferlets) as server,
        Client(server.url) as client,
    ):
        await _launch(client, plan)
        rounds = []
        for _ in range(plan.rounds):
            without = await _percents(server.pid, plan.seconds)
            async with _viewer(server.url):
                watched = await _percents(server.pid, plan.seconds)
            rounds.append((without, watched))
        paint, shown = await asyncio.to_thread(_opened, server.url)
    control, hosts = (median([watched[part] - without[part] for without, watched in rounds]) for part in (0, 1))
    added = median([sum(watched) - sum(without) for without, watched in rounds])
    usual = median([sum(without) for without, _ in rounds])
    usual, added, control, hosts = (round(one, 2) for one in (usual, added, control, hosts))
    return [Row(plan.inferlets, plan.generating, usual, added, control, hosts, paint, shown)]


async def _launch(client: Client, plan: Plan) -> None:
    program, places = await client.upload(PROGRAM, "watched"), asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with places:
            running = await client.launch(program, generates="yes" if number < plan.generating else "no")
            await running.receive()

    await asyncio.gather(*map(one, range(plan.inferlets)))


@contextlib.asynccontextmanager
async def _viewer(url: str) -> AsyncIterator[None]:
    """Somebody looks on, and has seen everything once."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as web, web.stream("GET", "/v1/dashboard") as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        reading = asyncio.create_task(_read(lines))
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.wait([reading])


async def _read(lines: AsyncIterator[str]) -> None:
    async for _ in lines:
        pass


async def _percents(pid: int, seconds: float) -> tuple[float, float]:
    """Of the control process and its hosts, for so long."""
    before, began = processor_seconds(pid), time.monotonic()
    await asyncio.sleep(seconds)
    after, passed = processor_seconds(pid), time.monotonic() - began
    control, hosts = (100 * (after[part] - before[part]) / passed for part in ("control", "hosts"))
    return control, hosts


def _opened(url: str) -> tuple[float | None, float | None]:
    path = find_chromium()
    if path is None:
        return None, None
    with chromium(path) as page:
        began = time.monotonic()
        page.open(f"{url}/")
        page.until(SHOWN)
        shown = 1e3 * (time.monotonic() - began)
        return round(page.until(PAINT), 1), round(shown, 1)
