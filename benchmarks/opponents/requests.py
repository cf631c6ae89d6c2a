"""How long single requests take, and how many are done in a second: at one side, and at both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ..support.samples import median

Request = Callable[[], Awaitable[object]]
Name = TypeVar("Name")

TURNS = 3
"""Rates are measured so often at each side: one run says little, as the pace of a machine changes by a tenth."""
REST_SECONDS = 0.5
"""Between turns: Pie makes guests after its own, with up to 50 ms of processor, within this time."""


async def seconds_of(request: Request) -> float:
    """Seconds of one request alone."""
    start = time.perf_counter()
    await request()
    return time.perf_counter() - start


async def run_many(request: Request, count: int, concurrent: int) -> tuple[float, list[float]]:
    """Requests a second, of `count` with so many at a time, and the seconds of each."""
    left, times = iter(range(count)), []

    async def one_after_the_other() -> None:
        for _ in left:
            times.append(await seconds_of(request))

    start = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(concurrent)))
    return count / (time.perf_counter() - start), times


async def run_in_turns(
    requests: Mapping[Name, Request], count: int, concurrent: int
) -> list[dict[Name, tuple[float, list[float]]]]:
    """What `run_many` gives for each of several requests, turn by turn."""
    turns = []
    for _ in range(TURNS):
        turns.append({name: await run_many(request, count, concurrent) for name, request in requests.items()})
        await asyncio.sleep(REST_SECONDS)
    return turns


@dataclass(frozen=True)
class Compared:
    """Medians in milliseconds of requests alone, and requests a second; `latency` and `rate` are the medians of Pie's
    over the opponent's, turn by turn."""

    pie_ms: float
    opponent_ms: float
    latency: float
    pie_s: float
    opponent_s: float
    rate: float


async def compare(pie: Request, opponent: Request, rounds: int, count: int, concurrent: int) -> Compared:
    """Both in turns: `rounds` requests alone, then TURNS times `count`, so many at a time."""
    await pie()  # warm
    await opponent()
    turns = [(await seconds_of(pie), await seconds_of(opponent)) for _ in range(rounds)]
    pie_seconds, opponent_seconds = zip(*turns, strict=True)
    many = await run_in_turns({"opponent": opponent, "pie": pie}, count, concurrent)
    rates = [(turn["pie"][0], turn["opponent"][0]) for turn in many]
    return Compared(
        pie_ms=round(1e3 * median(pie_seconds), 1),
        opponent_ms=round(1e3 * median(opponent_seconds), 1),
        latency=round(median([one / other for one, other in turns]), 3),
        pie_s=round(median([one for one, _ in rates]), 2),
        opponent_s=round(median([other for _, other in rates]), 2),
        rate=round(median([one / other for one, other in rates]), 3),
    )
