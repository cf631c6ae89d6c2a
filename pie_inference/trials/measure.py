"""Times candidates against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Run = Callable[[], object]

LEAST_ROUNDS = 3
SECONDS = 0.06
"""For one size of one kind, all ways together, once each has had its least rounds."""
HOPELESS = 2.0
"""A way that takes so many times as long as another one is out of the race."""


@dataclass(frozen=True)
class Size:
    """Work that all ways can do."""

    name: str
    runs: Mapping[str, Run]  # by way


@dataclass(frozen=True)
class Timed:
    """Seconds of one size, by way; a way that is out of the race is missing."""

    size: str
    seconds: Mapping[str, float]


def time_sizes(sizes: Sequence[Size]) -> list[Timed]:
    """Times all sizes, in their order; small ones first, so that a hopeless way costs little."""
    return list(_time_sizes(sizes))


def _time_sizes(sizes: Sequence[Size]) -> Iterator[Timed]:
    out: set[str] = set()
    for size in sizes:
        seconds = _race({way: run for way, run in size.runs.items() if way not in out})
        best = min(seconds.values())
        out |= {way for way, one in seconds.items() if one > HOPELESS * best}
        yield Timed(size.name, seconds)


def _race(runs: Mapping[str, Run]) -> dict[str, float]:
    """The best time of each, which take turns; the first turn only warms up. With one runner there is no race."""
    best = dict.fromkeys(runs, float("inf"))
    end, rounds = time.perf_counter() + SECONDS, -1
    while rounds < LEAST_ROUNDS or time.perf_counter() < end:
        for way, run in runs.items():
            elapsed = _seconds(run)
            if rounds >= 0:
                best[way] = min(best[way], elapsed)
        rounds += 1
        if len(runs) == 1 and rounds > 0:
            break
    return best


def _seconds(run: Run) -> float:
    """The time of a run behind another one, in which the threads of whoever ran before stop spinning."""
    run()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
