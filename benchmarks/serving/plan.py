"""How much `serve` does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..opponents.sides import check_models
from ..plans import refuse_unknown

NAMES = tuple(sorted(path.stem for path in (Path(__file__).parent / "scenarios").glob("[!_]*.py")))
"""Each file there is a scenario."""


@dataclass(frozen=True)
class Plan:
    """`scenarios` run on servers of their own, with `model` where a scenario needs no other one. What is compared takes
    `rounds` turns, with `streams` at once of `tokens` tokens; a conversation has `turns`. Loads last `seconds` each,
    overload `overload_seconds`. `tree`: the tree to serve from, if not this one."""

    scenarios: tuple[str, ...] = NAMES
    model: str = "demo"
    rounds: int = 5
    turns: int = 43
    streams: int = 32
    tokens: int = 192
    seconds: float = 15.0
    overload_seconds: float = 60.0
    tree: Path | None = None

    def __post_init__(self) -> None:
        refuse_unknown("scenario", self.scenarios, NAMES)
        check_models((self.model,))


FULL = Plan()
QUICK = Plan(rounds=2, seconds=4.0, overload_seconds=8.0)
TINY = Plan(rounds=1, turns=2, streams=2, tokens=16, seconds=0.3, overload_seconds=0.5)
