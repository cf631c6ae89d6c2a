"""Virtual addresses of one inferlet: contiguous runs of numbers, reused as late as the table allows."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.errors import Exhausted
from pie_control.resources.ranges import Range

INITIAL_CAPACITY = 64
MOST_ADDRESSES = 1 << 20
"""In a table. Whoever keeps a few addresses of each of many allocations would make it grow without end."""


class AddressAllocator:
    """Finds runs of free addresses. When all are taken, there are twice as many from then on: whoever has a table for
    them makes it larger.

    Addresses are handed out in a circle, so a stale one is noticed more often than with reuse at once.
    """

    def __init__(self) -> None:
        self._taken = bytearray(INITIAL_CAPACITY)
        self._next = 0

    @property
    def capacity(self) -> int:
        return len(self._taken)

    def allocate(self, count: int) -> int:
        """First of `count` consecutive addresses. Raises Exhausted."""
        run = bytes(count)
        first = self._taken.find(run, self._next)
        if first < 0:
            first = self._taken.find(run)
        if first < 0:
            first = self._extend(count)
        self._taken[first : first + count] = b"\1" * count
        self._next = first + count
        return first

    def release(self, ranges: Sequence[Range]) -> None:
        """The addresses can be handed out again."""
        for first, last in ranges:
            assert self._taken.find(0, first, last) < 0, "an address was released twice"
            self._taken[first:last] = bytes(last - first)

    def _extend(self, count: int) -> int:
        first = len(self._taken.rstrip(b"\0"))
        if first + count > MOST_ADDRESSES:
            raise Exhausted(
                f"no {count} addresses in a row are left of {MOST_ADDRESSES}: what is held lies too far apart. Free "
                "more of it, or allocate fewer at a time"
            )
        self._taken.extend(bytes(max(self.capacity, count)))
        return first
