"""What does a state that survives the server add to a launch, and to a start with many records?

Two servers beside paced workers, one with a state folder and one without, launch in turns: the time until a launch is
accepted. Then a server starts with an empty folder and with one that has records, in turns.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from pie_control.client import Client
from pie_control.durable.inferlets import InferletRecord
from pie_control.durable.state import NONE, State

from ...opponents.sides import settings_of
from ...support.guests import program_of
from ...support.processes import processor_seconds
from ...support.samples import median
from ...support.server import serving
from ..plan import Plan
from ..rows import Row, row
from ..session import Session, session

NAME = "state"
MODEL = "paced:0ms"
LAUNCHES = 100
"""In a round, on each side."""
DAYS, BYTES = 30.0, 1 << 30
TENANT, PROGRAM = "default", "0" * 64
RESULT = '"' + 100 * "x" + '"'


async def measure(plan: Plan) -> list[Row]:
    """Launches, then starts."""
    return [*await _launches(plan), *await _starts(plan)]


async def _launches(plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="pie-benchmark-") as folder:
        async with AsyncExitStack() as stack:
            sides = []
            for state in (str(Path(folder) / "state"), NONE):
                server = await stack.enter_async_context(serving(tree=plan.tree, **settings_of(MODEL), state=state))
                client = await stack.enter_async_context(Client(server.url))
                program = await client.upload(program_of("component", "first_message"), "first_message")
                sides.append((await stack.enter_async_context(session(server.url)), program))
            for side in sides:
                await _accepted(*side)  # warm
            pairs = [[await _accepted(*side) for side in sides] for _ in range(LAUNCHES * plan.rounds)]
    on, off = (median([pair[side] for pair in pairs]) for side in (0, 1))
    at = f"a component, {len(pairs)} launches"
    return [
        row(NAME, "launch_on", on, "ms", at=at),
        row(NAME, "launch_off", off, "ms", at=at),
        row(NAME, "launch_added", on - off, "ms", at=at, bound="<= 0.2"),
    ]


async def _accepted(own: Session, program: str) -> float:
    """Milliseconds until a launch is accepted; waits until the inferlet has ended."""
    launched = await own.launch(program)
    return 1e3 * (launched.told - launched.began)


async def _starts(plan: Plan) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="pie-benchmark-") as folder:
        full, empty = Path(folder) / "full", Path(folder) / "empty"
        fill(full, plan.records)
        pairs = [[await _start(plan, state) for state in (full, empty)] for _ in range(plan.rounds)]
    at = f"{plan.records} records"
    (full_s, full_cpu), (empty_s, empty_cpu) = (
        [median([pair[side][kind] for pair in pairs]) for kind in (0, 1)] for side in (0, 1)
    )
    return [
        row(NAME, "start", full_s, "s", at=at),
        row(NAME, "start_added", full_s - empty_s, "s", at=at, bound="<= 1"),
        row(NAME, "start_added_processor", full_cpu - empty_cpu, "s", at=at),
    ]


async def _start(plan: Plan, state: Path) -> tuple[float, float]:
    """Seconds until a server serves, and seconds of processor that its control process has taken."""
    began = time.perf_counter()
    async with serving(tree=plan.tree, **settings_of(MODEL), state=state) as server:
        return time.perf_counter() - began, processor_seconds(server.pid)["control"]


def fill(folder: Path, records: int) -> None:
    """A state of inferlets that have ended."""
    state = State(folder, DAYS, BYTES)
    try:
        for _ in range(records):
            number, now = state.inferlets.next_number(), time.time()
            state.inferlets.launched(number, TENANT, PROGRAM, "agent", now)
            record = InferletRecord(number, TENANT, PROGRAM, "agent", 0, None, now, "finished", now, 0.1, RESULT, None)
            state.inferlets.ended(record)
    finally:
        state.close()
