"""Lists of pages, embeds and slots, stored as ranges.

A host call takes such a list as flat ranges (first, length, first, length, ...). `pages[2:5]` slices and `a + b` joins
without building a list of single numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self, overload


class Addresses:
    """An immutable sequence of addresses, stored as ranges. An index gives an address (int), a slice the same type."""

    __slots__ = ("_length", "ranges")

    def __init__(self, ranges: Iterable[int] = ()) -> None:
        flat = tuple(ranges)
        if len(flat) == 2:  # most have one range
            self.ranges: tuple[int, ...] = flat
            self._length: int = flat[1]
            return
        if len(flat) % 2:
            raise ValueError(f"ranges are pairs (first, length), but there are {len(flat)} numbers")
        self.ranges = flat
        self._length = sum(flat[1::2])

    @classmethod
    def of(cls, addresses: Iterable[int]) -> Self:
        """From single addresses; adjacent ones become one range."""
        ranges: list[int] = []
        for address in addresses:
            if ranges and ranges[-2] + ranges[-1] == address:
                ranges[-1] += 1
            else:
                ranges += (address, 1)
        return cls(ranges)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        for first, length in zip(self.ranges[::2], self.ranges[1::2], strict=True):
            yield from range(first, first + length)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> int | Self:
        if isinstance(index, int):
            if self.ranges and 0 <= index < self.ranges[1]:
                return self.ranges[0] + index
            return self._at(range(self._length)[index])
        start, stop, step = index.indices(self._length)
        if step != 1:
            return self.of(self._at(position) for position in range(start, stop, step))
        if len(self.ranges) == 2:
            return type(self)((self.ranges[0] + start, stop - start) if start < stop else ())
        return type(self)(self._cut(start, stop))

    def _at(self, position: int) -> int:
        return next(iter(type(self)(self._cut(position, position + 1))))

    def _cut(self, start: int, stop: int) -> Iterator[int]:
        """Ranges of the addresses at positions start..stop."""
        offset = 0
        for first, length in zip(self.ranges[::2], self.ranges[1::2], strict=True):
            begin, end = max(start - offset, 0), min(stop - offset, length)
            if begin < end:
                yield from (first + begin, end - begin)
            offset += length

    def __add__(self, other: Self) -> Self:
        left, right = self.ranges, other.ranges
        if left and right and left[-2] + left[-1] == right[0]:
            return type(self)((*left[:-1], left[-1] + right[1], *right[2:]))
        return type(self)(left + right)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and list(other) == list(self)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        pairs = zip(self.ranges[::2], self.ranges[1::2], strict=True)
        parts = ", ".join(f"{first}:{first + length}" for first, length in pairs)
        return f"{type(self).__name__}[{parts}]"


class Embeds(Addresses):
    """Addresses of embedding slots."""

    __slots__ = ()


class Slots(Addresses):
    """Addresses of single token slots: page * page size + offset."""

    __slots__ = ()


class Pages(Addresses):
    """Addresses of KV pages."""

    __slots__ = ()

    def slots(self, page_size: int) -> Slots:
        """All token slots of these pages, in order."""
        return Slots(number * page_size for number in self.ranges)
