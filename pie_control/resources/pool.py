"""A pool of physical slots of one worker (pages, embeds or token slots): reference counts and quarantine.

Every slot is in exactly one of three states: free, used (its reference count is above zero) or quarantined (given back,
but a wave that was already formed may still touch it). `wave_completed` ends quarantine.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """Slots of a pool by state; free + used + quarantined = total."""

    total: int
    free: int
    used: int
    quarantined: int


class Pool:
    """Hands out slot numbers 0 .. total - 1."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.quarantined = 0
        self._free = list(range(total - 1, -1, -1))
        self._references = array("i", bytes(4 * total))
        self._quarantine: deque[tuple[int, list[int]]] = deque()  # (wave, slots), waves ascending

    @property
    def free(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` free slots, each with one reference. The caller has checked that there are enough."""
        assert 0 < count <= len(self._free), f"took {count} of {len(self._free)} free slots"
        slots = self._free[-count:]
        del self._free[-count:]
        slots.reverse()
        for slot in slots:
            self._references[slot] = 1
        return slots

    def references(self, slot: int) -> int:
        """How many hold a slot."""
        return self._references[slot]

    def all_references(self) -> Sequence[int]:
        """How many hold each slot. Not to be changed."""
        return self._references

    def retain(self, slots: Iterable[int]) -> None:
        """Adds a reference to slots in use, for another holder."""
        for slot in slots:
            assert self._references[slot] > 0, f"slot {slot} is not in use"
            self._references[slot] += 1

    def release(self, slots: Iterable[int], wave: int | None) -> None:
        """Drops a reference. Slots without a reference are quarantined until `wave` completes (None: free at once)."""
        dropped, references = list[int](), self._references
        for slot in slots:
            left = references[slot] - 1
            assert left >= 0, f"slot {slot} was given back twice"
            references[slot] = left
            if not left:
                dropped.append(slot)
        if wave is None:
            self._free.extend(dropped)
        elif dropped:
            self._quarantine.append((wave, dropped))
            self.quarantined += len(dropped)

    def wave_completed(self, wave: int) -> None:
        """Frees what was quarantined for `wave` and the ones before."""
        quarantine = self._quarantine
        while quarantine and quarantine[0][0] <= wave:
            _, slots = quarantine.popleft()
            self.quarantined -= len(slots)
            self._free.extend(slots)

    def usage(self) -> PoolUsage:
        free = len(self._free)
        return PoolUsage(self.total, free, self.total - free - self.quarantined, self.quarantined)
