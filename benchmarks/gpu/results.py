"""The output of a part of `gpu_bench`: rows, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

MARK = "RESULT "


@dataclass(frozen=True)
class Measured:
    """One way to decode `concurrent` sequences of one model. Without a time, it could not be: `note` says why."""

    model: str
    way: str
    concurrent: int
    tpot_ms: float | None  # time between two tokens of a sequence
    tokens_per_second: float | None  # of all sequences
    note: str = ""


def row(model: str, way: str, concurrent: int, seconds_per_token: float, note: str = "") -> Measured:
    """A row, from the time of a step that gives each sequence a token."""
    return Measured(
        model, way, concurrent, round(1e3 * seconds_per_token, 4), round(concurrent / seconds_per_token, 1), note
    )


def tell(rows: Sequence[Measured]) -> None:
    """Sends rows to the process that started this one, at once, so that they survive a later crash."""
    for each in rows:
        print(MARK + json.dumps(asdict(each)), flush=True)


def read(output: str) -> list[Measured]:
    """The rows that a part sent."""
    return [Measured(**json.loads(line[len(MARK) :])) for line in output.splitlines() if line.startswith(MARK)]


def log(text: str) -> None:
    """Prints progress for the user."""
    print(text, file=sys.stderr, flush=True)
