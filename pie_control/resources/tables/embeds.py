"""The embed addresses of one inferlet: what is in them, as issued."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.errors import InvalidState, NotFound
from pie_control.resources.ranges import Range

from .addresses import AddressAllocator

NOT_OWNED = -2
NEVER_FILLED = -1


class EmbedTable:
    """State by virtual address. `positions` is the token position in an embed, or one of the constants above;
    `is_output` says of a filled one that a forward filled it.

    `writes` and `reads` hold the stamp of the last command that did so (see hazards.py).
    """

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.is_output = bytearray()
        self.writes: list[int] = []
        self.reads: list[int] = []
        self.owned = 0
        self._addresses = AddressAllocator()

    def allocate(self, count: int, stamp: int) -> int:
        first = self._addresses.allocate(count)
        if self._addresses.capacity > len(self.positions):
            self._grow()
        last = first + count
        self.positions[first:last] = [NEVER_FILLED] * count
        self.writes[first:last] = [stamp] * count
        self.reads[first:last] = [0] * count
        self.owned += count
        return first

    def disown(self, ranges: Sequence[Range]) -> None:
        """The addresses are invalid from now on; they are kept until `release`."""
        for first, last in ranges:
            self.positions[first:last] = [NOT_OWNED] * (last - first)
            self.owned -= last - first

    def release(self, ranges: Sequence[Range]) -> None:
        """Addresses that were disowned can be handed out again."""
        self._addresses.release(ranges)

    def check_owned(self, ranges: Sequence[Range]) -> None:
        """Raises NotFound if an address is not owned."""
        for first, last in ranges:
            held = self.positions[first:last]
            if NOT_OWNED in held or len(held) < last - first:
                bad = held.index(NOT_OWNED) if NOT_OWNED in held else len(held)
                raise NotFound(f"embed {first + bad} is not allocated; alloc gives addresses")

    def filled_positions(self, ranges: Sequence[Range]) -> list[int]:
        """Token positions of the embeds, in order. Raises NotFound or InvalidState (never filled)."""
        first, last = ranges[0] if len(ranges) == 1 else (0, 0)
        found = self.positions[first:last] if last else [p for a, b in ranges for p in self._owned_slice(a, b)]
        if not found or min(found) < 0 or (last and len(found) < last - first):
            self.check_owned(ranges)
            self._refuse_unfilled(ranges)
        return found

    def check_outputs(self, ranges: Sequence[Range]) -> None:
        """Whether all hold outputs of a forward. Raises NotFound or InvalidState (never filled, an input)."""
        self.filled_positions(ranges)
        for first, last in ranges:
            place = self.is_output.find(0, first, last)
            if place >= 0:
                raise InvalidState(
                    f"embed {place} holds an input token, which says nothing of the next one; "
                    "run forward first and name its output embed"
                )

    def first_output(self, ranges: Sequence[Range]) -> int:
        """The first of embeds, which are filled, that a forward filled; -1: there is none."""
        places = (self.is_output.find(1, first, last) for first, last in ranges)
        return next((place for place in places if place >= 0), -1)

    def fill(self, ranges: Sequence[Range], positions: Sequence[int], *, is_output: bool) -> None:
        """Puts tokens at these positions into the embeds, which are owned and as many, or the outputs of these."""
        if len(positions) == 1:  # as each step of a generation does
            first = ranges[0][0]
            self.positions[first], self.is_output[first] = positions[0], is_output
            return
        self.move(ranges, positions)
        for first, last in ranges:
            self.is_output[first:last] = bytes([is_output]) * (last - first)

    def fill_step(self, embed: int, output: int, position: int, stamp: int) -> None:
        """A step of one token fills its input and its output, and its command reads both."""
        for place, of_forward in ((embed, 0), (output, 1)):
            self.positions[place], self.is_output[place] = position, of_forward
            self.writes[place] = self.reads[place] = stamp

    def move(self, ranges: Sequence[Range], positions: Sequence[int]) -> None:
        """Gives the embeds, which are owned and as many, these positions."""
        done = 0
        for first, last in ranges:
            self.positions[first:last] = positions[done : done + last - first]
            done += last - first

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """What is in embeds that are filled is in others, which are owned and as many, too."""
        positions, is_output = self.positions, self.is_output
        filled = [(positions[embed], is_output[embed]) for embed in source]
        for embed, (position, of_forward) in zip(target, filled, strict=True):
            positions[embed], is_output[embed] = position, of_forward

    def empty(self, ranges: Sequence[Range]) -> None:
        """Nobody can say what the embeds, which are owned, will hold."""
        for first, last in ranges:
            self.positions[first:last] = [NEVER_FILLED] * (last - first)

    def _owned_slice(self, first: int, last: int) -> list[int]:
        self.check_owned(((first, last),))
        return self.positions[first:last]

    def _refuse_unfilled(self, ranges: Sequence[Range]) -> None:
        for first, last in ranges:
            for address in range(first, last):
                if self.positions[address] == NEVER_FILLED:
                    raise InvalidState(
                        f"embed {address} was never filled, or a decode run used it since; "
                        "fill it with embed-txt or a forward first"
                    )

    def _grow(self) -> None:
        added = self._addresses.capacity - len(self.positions)
        self.positions.extend([NOT_OWNED] * added)
        self.is_output.extend(bytes(added))
        self.writes.extend([0] * added)
        self.reads.extend([0] * added)
