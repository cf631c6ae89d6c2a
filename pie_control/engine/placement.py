"""Where an inferlet goes: a pure function of the loads of a model's replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a replica now. `serves`: it takes work; otherwise it restarts, and work waits for it."""

    serves: bool
    inferlets: int
    free_pages: int


def place(loads: Sequence[Load]) -> int | None:
    """Index of the replica for a new inferlet; None if there is none. It stays there, for its pages are there.

    Replicas that serve go first, then those with the fewest inferlets, then those with the most free pages.
    """
    if not loads:
        return None
    return min(range(len(loads)), key=lambda i: (not loads[i].serves, loads[i].inferlets, -loads[i].free_pages, i))
