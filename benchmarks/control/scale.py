"""What does a token cost beside a model of a given speed, however many inferlets run?

The worker is a paced one (`pie serve --worker paced:15ms`): like a GPU, it takes `step_ms` for each wave and no
processor. So a token takes the step's time at least, and what it takes beyond is the control layer's: `overhead`. The
client reads in a process of its own. The worker is the server's own, or one that listens at the loopback.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pie_control.client import Client

from ..plans import MAY_BE_ZERO, refuse_unknown
from ..support.guests import program_of
from ..support.processes import count_parts, processor_seconds
from ..support.reader import Read, Reader, reading
from ..support.samples import median, percentile
from ..support.server import Server, listening_worker, scheduler_counts, serving

RUST = "rust"
"""Reads distributions, as the program in Python does, as a program in Rust."""
PROGRAMS = ("stream", "piped", "whole", "distributions", RUST, "fork_join", "compute")
OWN, LISTENS = "own", "listens"
WORKERS = (OWN, LISTENS)
BRANCHES = {"fork_join": 8}
"""Sequences that each inferlet has in a wave, if there are several."""
MOST_SEQUENCES = 1024
"""Of a wave: more would need two. Rows beyond are left out."""
WARM_UP_TOKENS = 4
SETTLE_SECONDS = 0.3
"""Until a host has told how much time its guests have used."""
START_SECONDS, START_SECONDS_EACH = 2 * SETTLE_SECONDS, 0.003
"""Until all have heard when they start; one by one they would not run at the same time."""
WORK_MS = 4
"""Of Python for each token, in the program `compute`."""


@dataclass(frozen=True)
class Plan:
    """A row for each of `programs`, number of `inferlets`, step in milliseconds and number of `hosts` (none given: what
    the server chooses), and each of `workers`: the medians of `rounds` runs of `tokens` tokens. `tree`: the tree to
    serve from, if not this one."""

    programs: tuple[str, ...]
    inferlets: tuple[int, ...]
    steps_ms: tuple[int, ...]
    hosts: tuple[int, ...] = field(metadata=MAY_BE_ZERO)
    tokens: int
    rounds: int
    workers: tuple[str, ...] = (OWN,)
    tree: Path | None = None

    def __post_init__(self) -> None:
        refuse_unknown("program", self.programs, PROGRAMS)
        refuse_unknown("worker", self.workers, WORKERS)


FULL = Plan(PROGRAMS, (1, 8, 32, 64, 128, 256, 512, 896), steps_ms=(5, 15, 30), hosts=(1, 2), tokens=128, rounds=3)
QUICK = Plan(("stream", "distributions"), (1, 32, 128), steps_ms=(15,), hosts=(), tokens=64, rounds=1)


@dataclass(frozen=True)
class Row:
    """Medians over the rounds. Time per token of an inferlet, from its first to its last message: the median inferlet
    and the slowest in a hundred; `overhead` of the median over the step. `tokens_s`: of all inferlets. `busy`: share of
    the time in which the worker had a wave. `batch`: tokens that a wave gives. The rest is processor time for a token,
    in microseconds: of the control process, the application hosts, the worker and the reading client. `guest_us`, a
    part of one of the first two, is that of turns inside guests, with the calls that they make."""

    program: str
    inferlets: int
    step_ms: int
    hosts: int
    worker: str
    tpot_p50_ms: float
    tpot_p99_ms: float
    overhead: float
    tokens_s: float
    busy: float
    batch: float
    control_us: float
    hosts_us: float
    guest_us: float
    worker_us: float
    reader_us: float


async def run(plan: Plan) -> list[Row]:
    """One row for each combination that fits into one wave."""
    servers = itertools.product(plan.steps_ms, plan.hosts or (None,), plan.workers)
    return [row for step, hosts, worker in servers for row in await _measure_server(plan, step, hosts, worker)]


def fits(program: str, inferlets: int) -> bool:
    """Whether one wave can hold a token of each of their sequences."""
    return inferlets * BRANCHES.get(program, 1) <= MOST_SEQUENCES


@asynccontextmanager
async def _worker(plan: Plan, step: int, worker: str) -> AsyncIterator[dict[str, object]]:
    """The settings of a server that uses such a worker."""
    model, pace = "paced=demo", f"paced:{step}ms"
    if worker == OWN:
        yield {"model": model, "worker": pace}
        return
    async with listening_worker(model, pace, plan.tree) as settings:
        yield settings


async def _measure_server(plan: Plan, step: int, hosts: int | None, worker: str) -> list[Row]:
    most = max(plan.inferlets) + 1
    settings: dict[str, Any] = {"max_inferlets": most, "max_inferlets_per_client": most, "warm_pool": 0}
    settings |= {} if hosts is None else {"hosts": hosts}
    async with (
        _worker(plan, step, worker) as of_worker,
        serving(tree=plan.tree, **settings, **of_worker) as server,
        Client(server.url) as client,
        reading(server.url) as one,
    ):
        measured = _Measured(server, client, one, step, worker, plan)
        return [
            await measured.row(program, inferlets)
            for program, inferlets in itertools.product(plan.programs, plan.inferlets)
            if fits(program, inferlets)
        ]


@dataclass(frozen=True)
class _State:
    """Counts of a server at a moment."""

    statistics: dict[str, Any]
    processor: Mapping[str, float]


class _Measured:
    """A server that is measured."""

    def __init__(self, server: Server, client: Client, reader: Reader, step: int, worker: str, plan: Plan) -> None:
        self._server, self._client, self._reader = server, client, reader
        self._step, self._worker, self._plan = step, worker, plan
        self._rounds_of_work = 0

    async def row(self, program: str, inferlets: int) -> Row:
        if program == "compute" and not self._rounds_of_work:
            self._rounds_of_work = WORK_MS * await self._calibrate()
        await self._run(program, min(inferlets, 2), WARM_UP_TOKENS)
        rounds = [await self._run(program, inferlets, self._plan.tokens) for _ in range(self._plan.rounds)]
        print(f"{program} {inferlets} x {self._step} ms: {rounds[-1]['overhead']:.3f}", file=sys.stderr, flush=True)
        hosts = count_parts(self._server.pid).get("hosts", 0)
        values = {name: round(median([one[name] for one in rounds]), 3) for name in rounds[0]}
        return Row(program, inferlets, self._step, hosts, self._worker, **values)

    async def _calibrate(self) -> int:
        """Rounds of the program's loop in a millisecond, with nothing else running."""
        program = await self._client.upload(program_of("python", "scale"), "scale")
        running = await self._client.launch(program, "calibrate", "1")
        await running.receive()
        await running.send("0")
        rounds = int(await running.receive())
        await running.terminate()
        return rounds

    async def _run(self, program: str, inferlets: int, tokens: int) -> dict[str, float]:
        arguments = [program, str(tokens), str(self._rounds_of_work)]
        wait = START_SECONDS + inferlets * START_SECONDS_EACH
        if program == RUST:
            source, arguments = program_of(RUST, "scale"), [str(tokens), str(round(1e3 * wait))]
        else:
            source = program_of("python", "scale")
        await self._reader.launch(await self._client.upload(source, f"scale-{program}"), inferlets, arguments)
        start = time.time() + wait
        await self._reader.aim(start)
        await asyncio.sleep(SETTLE_SECONDS)
        if time.time() > start:
            raise RuntimeError(f"{inferlets} inferlets could not be told in time when to start: is the machine busy?")
        before = _State(await self._client.statistics(), processor_seconds(self._server.pid))
        read = await self._reader.read(start, tokens)
        processor = processor_seconds(self._server.pid)
        await asyncio.sleep(SETTLE_SECONDS)
        after = _State(await self._client.statistics(), processor)
        await self._reader.end()
        return self._numbers(program, read, inferlets * tokens, before, after)

    def _numbers(self, program: str, read: Read, tokens: int, before: _State, after: _State) -> dict[str, float]:
        times = [
            1e3 * ((last - first) / count if count else last / self._plan.tokens)  # 0: all came in one message
            for first, last, count in zip(read.first, read.last, read.between, strict=True)
        ]
        old, new = (scheduler_counts(one.statistics) for one in (before, after))
        guests = [one.statistics["inferlets"]["runner"]["guest_seconds"] for one in (before, after)]
        tokens *= BRANCHES.get(program, 1)

        def part(name: str) -> float:
            return 1e6 * (after.processor.get(name, 0.0) - before.processor.get(name, 0.0)) / tokens

        return {
            "tpot_p50_ms": median(times),
            "tpot_p99_ms": percentile(times, 99),
            "overhead": median(times) / self._step - 1,
            "tokens_s": tokens / max(read.last),
            "busy": (new["worker_seconds"] - old["worker_seconds"]) / max(read.last),
            "batch": tokens / max(1, new["waves"] - old["waves"]),
            "control_us": part("control"),
            "hosts_us": part("hosts"),
            "guest_us": 1e6 * (guests[1] - guests[0]) / tokens,
            "worker_us": part("worker"),
            "reader_us": 1e6 * read.processor / tokens,
        }
