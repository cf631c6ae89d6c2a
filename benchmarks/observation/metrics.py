"""What does it cost to measure (`pie serve --metrics`), in processor time for each token?

Turns and waves of streams, replayed in this process: two servers, one without and one with metrics, differ by more than
that from run to run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pie_control import calls
from pie_control.calls.kind import Batch, WaveContext
from pie_control.config import InferletLimits
from pie_control.observation.observer import Observer
from pie_control.programs.store import Program
from pie_control.registry.registry import Registry
from pie_control.scheduling import RunTokens, Turn
from pie_control.scheduling.answers import Wave
from pie_control.scheduling.statistics import Counts

from ..support.samples import median


@dataclass(frozen=True)
class Plan:
    """`turns` turns in which each of `streams` inferlets gets a token of a run, in `rounds` rounds."""

    streams: tuple[int, ...]
    turns: int
    rounds: int


FULL = Plan((1, 16, 64, 256), turns=2000, rounds=7)
QUICK = Plan((64,), turns=500, rounds=3)


@dataclass(frozen=True)
class Row:
    """Microseconds of processor time for a token; the median of the rounds."""

    streams: int
    us: float


async def run(plan: Plan) -> list[Row]:
    """One row for each number of streams."""
    return [
        Row(streams, round(median([_observer_us(streams, plan.turns) for _ in range(plan.rounds)]), 3))
        for streams in plan.streams
    ]


def _observer_us(streams: int, turns: int) -> float:
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
    for _ in range(turns):
        counts.add(wave)
        observer.turned("paced", turn)
    return 1e6 * (time.process_time() - began) / (turns * streams)


class _Steps(Batch[Any]):
    call = calls.CALLS["sample"]


def _ignore(*_: object) -> None:
    """Nobody listens."""
