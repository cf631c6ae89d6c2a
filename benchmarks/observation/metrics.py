"""What does it cost to measure (`pie serve --metrics`), in processor time for each token?

Two servers beside paced workers, one without and one with `--metrics`, generate in turns, while the other one is idle.
Their processor time is that of the control process and its hosts, from the start to the last token. As that moves by
more than a percent from run to run, what measuring itself takes is told beside it: the same turns and waves, replayed
in this process.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pie_control import calls
from pie_control.calls.kind import Batch, WaveContext
from pie_control.client import Client
from pie_control.config import InferletLimits
from pie_control.observation.observer import Observer
from pie_control.programs.store import Program
from pie_control.registry.registry import Registry
from pie_control.scheduling import RunTokens, Turn
from pie_control.scheduling.answers import Wave
from pie_control.scheduling.statistics import Counts

from ..plans import MAY_BE_ZERO, refuse_unknown
from ..support.guests import program_of
from ..support.processes import processor_seconds
from ..support.reader import Reader, reading
from ..support.samples import median
from ..support.server import Server, serving

OFF, ON = "off", "on"
START_SECONDS = 1.0
"""Until all have heard when they start."""
REPLAYED = 2000
"""Turns."""


@dataclass(frozen=True)
class Plan:
    """`streams` inferlets run `program` of `scale` at a time, `tokens` tokens each, in `rounds` turns of each server
    with `hosts`; a wave takes `step_ms`. `modes`: of the two servers; `off,off` says how much
    they differ by chance. `tree`: the tree to serve from, if not this one."""

    program: str = "stream"
    streams: int = 64
    tokens: int = 200
    rounds: int = 5
    hosts: int = field(default=1, metadata=MAY_BE_ZERO)
    step_ms: int = 5
    modes: tuple[str, ...] = (OFF, ON)
    tree: Path | None = None

    def __post_init__(self) -> None:
        refuse_unknown("mode", self.modes, (OFF, ON))
        if len(self.modes) != 2:
            raise ValueError("modes are those of two servers")


FULL = Plan()
QUICK = Plan(streams=16, tokens=32, rounds=1)


@dataclass(frozen=True)
class Row:
    """Microseconds of processor time for a token at the two servers, without and with metrics unless `modes` says
    otherwise; `ratio`: the median of the rounds' ratios.
    `observer_us`: what measuring takes for a token by itself, and `share`: this, of the time without."""

    program: str
    streams: int
    off_us: float
    on_us: float
    ratio: float
    observer_us: float
    share: float


@dataclass
class _Target:
    server: Server
    client: Client
    reader: Reader

    async def run(self, plan: Plan) -> float:
        """Microseconds for a token."""
        program = await self.client.upload(program_of("python", "scale"), f"scale-{plan.program}")
        await self.reader.launch(program, plan.streams, [plan.program, str(plan.tokens), "0"])
        start = time.time() + START_SECONDS
        await self.reader.aim(start)
        await asyncio.sleep(START_SECONDS / 2)
        before = self._seconds()
        await self.reader.read(start, plan.tokens)
        used = self._seconds() - before
        await self.reader.end()
        return 1e6 * used / (plan.streams * plan.tokens)

    def _seconds(self) -> float:
        used = processor_seconds(self.server.pid)
        return used["control"] + used.get("hosts", 0.0)


async def run(plan: Plan) -> list[Row]:
    """One row."""
    async with AsyncExitStack() as stack:
        off, on = [await _target(stack, plan, metrics) for metrics in plan.modes]
        for target in (off, on):
            await target.run(plan)  # warms up
        rounds = [(await off.run(plan), await on.run(plan)) for _ in range(plan.rounds)]
    without, observed = median([one for one, _ in rounds]), _observer_us(plan.streams)
    return [
        Row(
            plan.program,
            plan.streams,
            round(without, 1),
            round(median([one for _, one in rounds]), 1),
            round(median([one / other for other, one in rounds]), 4),
            round(observed, 3),
            round(observed / without, 4),
        )
    ]


async def _target(stack: AsyncExitStack, plan: Plan, metrics: str) -> _Target:
    settings: dict[str, Any] = {"model": "paced=demo", "worker": f"paced:{plan.step_ms}ms", "hosts": plan.hosts}
    settings |= {"warm_pool": 0, **({"metrics": True} if metrics == ON else {})}
    server = await stack.enter_async_context(serving(tree=plan.tree, **settings))
    client = await stack.enter_async_context(Client(server.url))
    return _Target(server, client, await stack.enter_async_context(reading(server.url)))


def _observer_us(streams: int) -> float:
    """Of a token: its wave, and the turn that has it."""
    registry = Registry(InferletLimits(), streams)
    program = Program("0" * 64, "scale", "", "python", 1, Path("scale"))
    entries = [registry.new(program, _ignore, _ignore) for _ in range(streams)]
    owners = [entry.number for entry in entries]
    observer = Observer(registry)
    batch = _Steps(cast(WaveContext, None))  # of which rows alone make no use
    batch.rows = streams
    wave, counts = Wave(1, [batch, batch, batch], {}), Counts()
    observer.watch("paced", counts)
    turn = Turn((), (), (), (), None, 0, RunTokens(owners, [7] * streams, [1] * streams, [False] * streams))
    began = time.process_time()
    for _ in range(REPLAYED):
        counts.add(wave)
        observer.turned("paced", turn)
    return 1e6 * (time.process_time() - began) / (REPLAYED * streams)


class _Steps(Batch[Any]):
    call = calls.CALLS["sample"]


def _ignore(*_: object) -> None:
    """Nobody listens."""
