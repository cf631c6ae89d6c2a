"""Where an inferlet goes: pure functions of loads, those of hosts and those of a model's replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a replica now. `serves`: it takes work; otherwise it restarts, and work waits for it. `kept`:
    pages that it keeps of what the inferlet asks for first."""

    serves: bool
    inferlets: int
    free_pages: int
    kept: int = 0


MOST_AHEAD = 4
"""Inferlets that a replica may have more than twice those of another, and still get one for keys that the other would
only have to compute."""


def place(loads: Sequence[Load], is_copy: bool = False) -> int | None:
    """Index of the replica for a new inferlet; None if there is none. It stays there, for its pages are there.

    Replicas that serve go first, then those that have the export, or most of it, then those with the fewest inferlets,
    then those with the most free pages. `is_copy`: the export can be computed again, so one that has far more inferlets
    than another does not go first for it.
    """
    if not loads:
        return None
    bound = 2 * min((one.inferlets for one in loads if one.serves), default=0) + MOST_AHEAD

    def rank(i: int) -> tuple[bool, int, int, int, int]:
        one = loads[i]
        near = one.kept if not is_copy or one.inferlets <= bound else 0
        return not one.serves, -near, one.inferlets, -one.free_pages, i

    return min(range(len(loads)), key=rank)


@dataclass(frozen=True, slots=True)
class HostLoad:
    """The load of an application host now. `has_room`: it has memory for a further inferlet; `warm`: Python guests that
    wait there for a launch."""

    serves: bool
    has_room: bool
    inferlets: int
    memory_bytes: int
    warm: int = 0


def place_on_host(loads: Sequence[HostLoad]) -> int | None:
    """Index of the host for a new inferlet, which stays there; None if no host takes one now.

    Of those that serve and have room, the one with the fewest inferlets, then the one with the most guests that wait
    for a launch, then the one with the least memory in use.
    """
    open_hosts = [number for number, load in enumerate(loads) if load.serves and load.has_room]
    return min(open_hosts, key=lambda i: (loads[i].inferlets, -loads[i].warm, loads[i].memory_bytes, i), default=None)
