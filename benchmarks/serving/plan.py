"""How much `serve` does."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..opponents.sides import check_models
from ..plans import MAY_BE_ZERO, refuse_unknown
from .servers import PEERS

NAMES = tuple(sorted(path.stem for path in (Path(__file__).parent / "scenarios").glob("[!_]*.py")))
"""Each file there is a scenario."""


@dataclass(frozen=True)
class Plan:
    """`scenarios` run on servers of their own, with `model` where a scenario needs no other one. What is compared takes
    `rounds` turns, with `streams` at once of `tokens` tokens; a conversation has `turns`. Loads last `seconds` each,
    overload `overload_seconds`; `percents`: of the capacity, for requests at random times. `records`: of inferlets that
    have ended, in a state. `peers` and the server at the address `opponent` are compared on `peer_model` in
    `peer_rounds` turns of `peer_streams` requests at once, Pie and `peers` on one `device`. `tree`: the tree to serve
    from, if not this one."""

    scenarios: tuple[str, ...] = NAMES
    model: str = "demo"
    rounds: int = 5
    turns: int = 43
    streams: int = 32
    tokens: int = 512
    seconds: float = 10.0
    overload_seconds: float = 60.0
    percents: tuple[int, ...] = (25, 50, 75, 90)
    slo_ttft_ms: int = 500
    slo_tpot_ms: int = 50
    records: int = field(default=100_000, metadata=MAY_BE_ZERO)
    peers: tuple[str, ...] = ("closed", "llama.cpp", "transformers")
    opponent: str = ""
    peer_model: str = "random-1b"
    peer_streams: tuple[int, ...] = (16, 32)
    peer_tokens: int = 64
    peer_rounds: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tree: Path | None = None

    def __post_init__(self) -> None:
        refuse_unknown("scenario", self.scenarios, NAMES)
        refuse_unknown("peer", self.peers, tuple(PEERS))
        check_models((self.model, self.peer_model))


FULL = Plan()
QUICK = Plan(
    rounds=2,
    seconds=4.0,
    overload_seconds=8.0,
    percents=(50, 90),
    records=20_000,
    peers=("closed",),
    peer_model="demo",
    peer_streams=(16,),
)
TINY = Plan(
    rounds=1,
    turns=2,
    streams=2,
    tokens=16,
    seconds=0.3,
    overload_seconds=0.5,
    percents=(50,),
    records=100,
    peers=("closed", "llama.cpp"),
    peer_model="random-tiny",
    peer_streams=(2,),
    peer_tokens=4,
)
