"""How long does a well-behaved inferlet stand still beside a hostile one?

A neighbour asks the model for a token every 10 ms and tells the listener. Beside it runs each program of tests/hostile,
alone and in several copies, until all have ended. `worst_gap_ms` is the longest time between two beats of the neighbour
meanwhile, `median_gap_ms` the usual one, and `quiet_gap_ms` the longest before, with nobody beside it. The model takes
no time, so all of a gap is the control layer's. `worst_busy_ms` is the most processor time of the control thread
between two beats: unlike the gap, it is the same on a busy machine. A gap of 100 ms at most is wanted.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pie_control.config import ServerConfig, build_config
from pie_control.errors import BadProgram
from pie_control.garbage import collect_at_leisure
from pie_control.inferlets.events import Event, Message
from pie_control.inferlets.lifecycle import ENDINGS
from pie_control.registry.entry import Entry
from pie_control.runtime import build_server
from pie_control.server_api import ServerApi
from pie_control.testing.fake_model import FakeModel
from pie_control.testing.in_process import InProcessClient

from ..report import ROOT
from ..support.guests import source
from ..support.samples import median

HOSTILE = ROOT / "tests" / "hostile"
TARGET_MS = 100.0
"""A gap that no program should cause."""
BEATS_BEFORE = 60
BEATS_FIRST = 10
"""Not counted: the neighbour is new."""
BEATS_AFTER = 3
RUN_SECONDS = 30
"""After that, what still runs is ended."""
MOST_SECONDS = 120.0
"""For one program: it has far less processor time."""


@dataclass(frozen=True)
class Plan:
    """`programs`: files of tests/hostile, without `.py`; none: all. `copies` of each that run at the same time."""

    programs: tuple[str, ...]
    copies: tuple[int, ...]
    cpu_seconds: float = 1.0
    memory_bytes: int = 96 << 20
    hosts: int = 0  # processes that run inferlets; 0: this one


FULL = Plan((), (1, 8), cpu_seconds=0.3)
"""Ninety programs: with more copies, or more processor time for each, it would take half an hour."""
QUICK = Plan(("endless_loop", "flood_of_commands", "wait_on_a_million", "huge_lists", "big_tokenization"), (1,))


@dataclass(frozen=True)
class Row:
    """`status`: how the copies ended, and how many of them so."""

    program: str
    copies: int
    status: str
    seconds: float
    beats: int
    quiet_gap_ms: float
    median_gap_ms: float
    worst_gap_ms: float
    worst_busy_ms: float


async def run(plan: Plan) -> list[Row]:
    """A row for each program and number of copies."""
    programs = [HOSTILE / f"{name}.py" for name in plan.programs] or sorted(HOSTILE.glob("*.py"))
    server = _server(plan)
    await server.start()
    collector = asyncio.create_task(collect_at_leisure(lambda: server.is_idle))  # as `pie serve` does
    try:
        return [await _beside(server, program, copies) for program in programs for copies in plan.copies]
    finally:
        collector.cancel()
        await server.close()


def summary(rows: Sequence[Row]) -> str:
    """The worst first, and the verdict."""
    ordered = sorted(rows, key=lambda row: row.worst_gap_ms, reverse=True)
    lines = [
        f"{row.worst_gap_ms:8.1f} ms (alone {row.quiet_gap_ms:.1f}, usually {row.median_gap_ms:.1f}, "
        f"processor time {row.worst_busy_ms:.1f})  "
        f"{row.copies} x {row.program}: {row.status}"
        for row in ordered
    ]
    return "\n".join([*lines, f"worst gap {ordered[0].worst_gap_ms:.1f} ms, the target is {TARGET_MS:.0f} ms"])


class _Beats:
    """Times of the neighbour's messages."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.busy: list[float] = []  # processor time of the thread at these times

    def __call__(self, event: Event) -> None:
        if isinstance(event, Message):
            self.times.append(time.perf_counter())
            self.busy.append(time.thread_time())

    async def until(self, count: int) -> None:
        while len(self.times) < count:
            await asyncio.sleep(0.005)


def _server(plan: Plan) -> ServerApi:
    client = InProcessClient(FakeModel(num_pages=4096))
    options = {"cpu_seconds": plan.cpu_seconds, "memory_bytes": plan.memory_bytes, "warm_pool": 2, "hosts": plan.hosts}
    config: ServerConfig = build_config({"model": [f"{client.model_name}=demo"], **options}).resolved()
    return build_server(config, lambda *_: client)


async def _beside(server: ServerApi, program: Path, copies: int) -> Row:
    beats = _Beats()
    uploaded = await server.upload(source("neighbour"), "neighbour")
    neighbour = await server.launch(uploaded.program, listener=beats)
    async with asyncio.timeout(MOST_SECONDS):
        await beats.until(BEATS_BEFORE)
        first, start = len(beats.times) - 1, time.perf_counter()
        status = await _outcomes(server, program, copies)
        seconds = time.perf_counter() - start
        await beats.until(len(beats.times) + BEATS_AFTER)
    server.terminate(neighbour.id, "the measurement is over")
    quiet, gaps = _gaps(beats.times[BEATS_FIRST : first + 1]), _gaps(beats.times[first:])
    busy = _gaps(beats.busy[first:])
    measured = [round(value, 2) for value in (max(quiet), median(gaps), max(gaps), max(busy))]
    return Row(program.stem, copies, status, round(seconds, 2), len(gaps), *measured)


def _gaps(times: Sequence[float]) -> list[float]:
    """Milliseconds."""
    return [1e3 * (after - before) for before, after in itertools.pairwise(times)]


async def _outcomes(server: ServerApi, program: Path, copies: int) -> str:
    try:
        uploaded = await server.upload(program.read_bytes(), program.stem)
    except BadProgram:
        return "refused"
    running: list[Entry] = []
    for _ in range(copies):
        running.append(await server.launch(uploaded.program))
        await asyncio.sleep(0)  # as between the requests of a session
    deadline = time.perf_counter() + RUN_SECONDS
    while any(one.status not in ENDINGS for one in running):
        await asyncio.sleep(0.005)
        if time.perf_counter() > deadline:  # among many, one may wait so much that it stays within its processor time
            for one in running:
                server.terminate(one.id, "the measurement is over")
    statuses = [str(one.status) for one in running]
    return ", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses)))
