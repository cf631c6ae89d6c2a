"""Tiles of images that are under way: each has a slot on the worker, from its first layer to its last, where its state
is between two waves. Tiles that find none stand in line, by class and then by the age of their inferlet. Half of the
slots are for interactive inferlets: a batch job whose tile has one may get nothing of many waves, and keeps it.

A slot is free as soon as its tile has no further part to go, or its inferlet ends, whatever is in flight: waves run in
order, and whoever gets the slot writes it before it reads it.
"""

from __future__ import annotations

from bisect import insort

from pie_control.ids import Owner
from pie_control.tenants.tenant import ServiceClass

from .pool import Pool

Rank = tuple[int, float, Owner, int]
"""A rank as requests for memory have it: class, age, inferlet, number of the command."""


class TileSlots:
    """Slots by inferlet and number of the command that goes through the layers."""

    def __init__(self, total: int) -> None:
        self._pool = Pool(total)
        self._slots: dict[tuple[Owner, int], int] = {}
        self._line: list[Rank] = []

    def __len__(self) -> int:
        """Tiles under way."""
        return len(self._slots)

    def has(self, owner: Owner, seq: int) -> bool:
        """Whether a tile has a slot."""
        return (owner, seq) in self._slots

    def has_room(self, owner: Owner, seq: int, service_class: int = ServiceClass.INTERACTIVE) -> bool:
        """Whether a tile can go on, or begin."""
        return self.has(owner, seq) or self._free_for(service_class) > 0

    def _free_for(self, service_class: int) -> int:
        kept = 0 if service_class == ServiceClass.INTERACTIVE else self._pool.total // 2
        return self._pool.free - kept

    def wait(self, rank: Rank) -> None:
        """A tile for which there is no room stands in line."""
        insort(self._line, rank)

    def begin(self) -> list[tuple[Owner, int]]:
        """A wave is being formed: the first tiles in line get the slots that are free. Which can go on now."""
        granted = []
        while self._line and self._free_for(self._line[0][0]) > 0:
            _, _, owner, seq = self._line.pop(0)
            self.take(owner, seq)
            granted.append((owner, seq))
        return granted

    def take(self, owner: Owner, seq: int) -> int:
        """The slot of a tile for which there is room."""
        slot = self._slots.get((owner, seq))
        if slot is None:
            (slot,) = self._pool.take(1)
            self._slots[owner, seq] = slot
        return slot

    def release(self, owner: Owner, seq: int) -> None:
        """The last part of a tile is in a wave."""
        self._pool.release((self._slots.pop((owner, seq)),), None)

    def give_up(self, owner: Owner, seq: int) -> None:
        """A tile that has not begun does not begin now: others may have its slot, if it has one."""
        if self.has(owner, seq):
            self.release(owner, seq)

    def drop(self, owner: Owner) -> None:
        """An inferlet has ended."""
        self._line = [rank for rank in self._line if rank[2] != owner]
        for own, seq in [key for key in self._slots if key[0] == owner]:
            self.release(own, seq)
