"""Moves tokens to other positions without computing them again: a worker rotates their keys (RoPE, Su et al. 2021).

Rotations compose, so a moved key is the one that was computed at the new position from the same input; what tokens
behind others have seen of these stays in them. Positions change as the call is issued, for whatever is issued after it.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument, InvalidState, Unsupported
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_control.resources.intervals import intervals_of
from pie_control.resources.kinds import PAGES, Resource
from pie_control.resources.ranges import Range, are_sound, merge, overlap, parse_ranges, total_length
from pie_control.resources.tables.contexts import pages_of
from pie_control.resources.tables.slots import EMPTY
from pie_inference.protocol import ModelDescription, ShiftKvpage

from ..arrays import addresses, append_slots, as_int32
from ..kind import Batch, Call, Stage, WaveContext, WorkerCommand
from .command import INTERVAL_BYTES

MOST_TOKENS = 1 << 16
"""In one shift, and in one batch of them."""


class ShiftCommand(WorkerCommand, frozen=True):
    """Virtual slots of tokens, and the positions to which these go."""

    slots: Sequence[Range]
    positions: NDArray[np.int32]

    @property
    def intervals(self) -> int:
        return len(self.slots)

    def fits(self, model: ModelDescription) -> bool:
        return are_sound(self.slots) and 0 < len(self.positions) == total_length(self.slots) <= MOST_TOKENS

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return pages_of(self.slots, page_size) if resource is PAGES else ()


class Shifts(NamedTuple):
    """Shifts of different slots that a queue has right behind each other, up to `seq`: they do not wait for each other,
    only for what was issued up to `after`."""

    seq: int
    queue: int
    after: int
    slots: Sequence[Range]


def issue(space: AddressSpace, queue: int, pages: Sequence[int], by: int) -> None:
    """Moves the tokens of pages, but those that are hidden. Raises Unsupported (the model cannot), NotFound,
    InvalidArgument (a position that the model does not have, too many tokens), InvalidState (no token to move, a page
    that was exported or imported, a decode run that writes to one or sees it)."""
    space.check_command(queue)
    if space.model.fixed_positions:
        raise Unsupported(
            f"model {space.model.name} cannot move tokens: {space.model.fixed_positions}. Compute them again, or serve "
            "the model with fewer positions (--max-context)"
        )
    ranges = parse_ranges(pages, "KV page")
    held = space.pages.read(ranges)
    if not ranges:
        return
    after, tokens = _moved(held, by, space.model.max_context)
    space.pages.check_unsealed(addresses(ranges))
    space.runs.check_emptied(addresses(ranges))
    if not by:
        return
    slots, positions = intervals_of(space.pages.slots_of(ranges)[tokens]), after[tokens]
    size = positions.nbytes + INTERVAL_BYTES * len(slots)
    space.check_large(size)
    last: Shifts | None = space.last_shift
    if last is None or (last.seq, last.queue) != (space.seq, queue) or overlap(last.slots, slots):
        last = Shifts(space.seq, queue, space.seq, ())  # earlier commands may read what is moved
    seq = space.next_seq()
    space.last_shift = Shifts(seq, queue, last.after, merge([*last.slots, *slots]))
    space.pages.rewrite(ranges, after, space.stamp(queue))
    space.issue(ShiftCommand(space.owner, queue, seq, last.after, None, (), slots, positions))
    space.note_large(size)


def _moved(held: NDArray[np.int32], by: int, limit: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """What the slots hold after it, and which of them move. Raises InvalidArgument, InvalidState."""
    tokens = held > np.int32(EMPTY)
    count = int(tokens.sum())
    if not count:
        raise InvalidState(
            "the pages hold no token, or hidden ones only: move pages that a forward or a copy has filled"
        )
    if count > MOST_TOKENS:
        raise InvalidArgument(f"{count} tokens are more than {MOST_TOKENS}: move them in several calls")
    lowest, highest = int(held[tokens].min()), int(held.max())
    if lowest + by < 0 or highest + by >= limit:
        raise InvalidArgument(
            f"tokens at positions {lowest} to {highest} moved by {by} would be at {lowest + by} to {highest + by}, "
            f"outside of the model's context of {limit} tokens: move them by {-lowest} to {limit - 1 - highest}"
        )
    return np.where(tokens, held + np.int32(by), held), tokens


class ShiftBatch(Batch[ShiftCommand]):
    """One shift of a queue in a wave."""

    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._left = MOST_TOKENS
        self._ends: array[int] = array("i", [0])
        self._slots: array[int] = array("i")

    def try_add(self, queue: Hashable, command: ShiftCommand, holdings: Holdings, done: int) -> int:
        if len(command.positions) > self._left:
            return done
        self._left -= len(command.positions)
        self.commands.append(command)
        append_slots(command.slots, holdings.pages.physical, self.context.model.page_size, self._slots)
        self._ends.append(len(self._slots))
        return 1

    def build(self) -> ShiftKvpage:
        positions = np.concatenate([command.positions for command in self.commands])
        return ShiftKvpage(slots=as_int32(self._slots), positions=positions, indptr=as_int32(self._ends))


CALL = ShiftCommand.call = Call(__name__, issue, stage=Stage.SHIFT, new_batch=ShiftBatch)
