"""Tiles of images that are under way: each has a slot on the worker, from its first layer to its last, where its state
is between two waves.

A slot is free as soon as its tile has no further part to go, or its inferlet ends, whatever is in flight: waves run in
order, and whoever gets the slot writes it before it reads it.
"""

from __future__ import annotations

from collections.abc import Container

from pie_control.ids import Owner

from .pool import Pool


class TileSlots:
    """Slots by inferlet and number of the command that goes through the layers."""

    def __init__(self, total: int) -> None:
        self._pool = Pool(total)
        self._slots: dict[tuple[Owner, int], int] = {}

    def __len__(self) -> int:
        """Tiles under way."""
        return len(self._slots)

    def has_room(self, owner: Owner, seq: int) -> bool:
        """Whether a tile can go on, or begin."""
        return (owner, seq) in self._slots or self._pool.free > 0

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

    def drop(self, owner: Owner) -> None:
        """An inferlet has ended."""
        for own, seq in [key for key in self._slots if key[0] == owner]:
            self.release(own, seq)

    def check_integrity(self, present: Container[Owner]) -> None:
        """Asserts that no slot is lost."""
        self._pool.check_integrity()
        assert self._pool.held() == len(self._slots)
        assert all(owner in present for owner, _ in self._slots), "a tile of nobody is under way"
