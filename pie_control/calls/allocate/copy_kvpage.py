"""Copies tokens from slots to slots."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

from pie_control.errors import InvalidArgument, InvalidState
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_control.resources.intervals import slots_in
from pie_control.resources.kinds import PAGES, Resource
from pie_control.resources.ranges import Range, are_sound, merge, parse_ranges, total_length
from pie_control.resources.tables.contexts import pages_of
from pie_control.resources.tables.reservations import check_not_withheld
from pie_control.resources.tables.slots import is_token
from pie_inference.protocol import CopyKvpage, ModelDescription

from ..arrays import addresses, append_slots, as_int32
from ..kind import Batch, Call, Stage, WaveContext, WorkerCommand
from .dealloc import drop_states

MOST_SLOTS = 1 << 16
"""In one copy, and in one batch of them: so a wave of copies is done in milliseconds on a GPU."""


class CopyCommand(WorkerCommand, frozen=True):
    """Virtual slots, of equal number."""

    source: Sequence[Range]
    target: Sequence[Range]

    @property
    def size(self) -> int:
        return total_length(self.source)

    @property
    def intervals(self) -> int:
        return len(self.source) + len(self.target)

    def fits(self, model: ModelDescription) -> bool:
        return are_sound(self.source, self.target) and 0 < self.size == total_length(self.target) <= MOST_SLOTS

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return pages_of((*self.source, *self.target), page_size) if resource is PAGES else ()


def issue(space: AddressSpace, queue: int, source: Sequence[int], target: Sequence[int]) -> None:
    """Slots are page * page_size + offset, as ranges. Raises NotFound, InvalidArgument, InvalidState (empty
    source, a target that a decode run has reserved or sees), QuotaExceeded (states of many copies)."""
    space.check_command(queue)
    (read, from_pages), (write, to_pages) = _slots(space, source, "source slot"), _slots(space, target, "target slot")
    count = total_length(read)
    if count != total_length(write):
        raise InvalidArgument(f"{count} source slots and {total_length(write)} target slots; the numbers must be equal")
    if not count:
        return
    if not space.pages.all_filled(read):
        empty = slots_in(read)[int(is_token(space.pages.held_at(read)).argmin())]
        raise InvalidState(f"source slot {empty} holds no token; copy filled slots only")
    if space.pages.withheld or space.pages.sealed:
        space.pages.check_unsealed(addresses(to_pages))
        check_not_withheld(space.pages, write)
    after = _hazard(space, queue, write, from_pages, to_pages)
    if space.states.owned:
        _copy_states(space, read, write)
    seq = space.next_seq()
    space.pages.copy(read, write, to_pages, space.stamp(queue))
    space.issue(CopyCommand(space.owner, queue, seq, after, None, (), read, write))


def _copy_states(space: AddressSpace, read: Sequence[Range], write: Sequence[Range]) -> None:
    if space.pages.none_filled(write):
        space.states.copied(read, write)
    else:
        drop_states(space, write)


def _slots(space: AddressSpace, flat: Sequence[int], what: str) -> tuple[Sequence[Range], Sequence[Range]]:
    """The slots, and the pages that they are in."""
    ranges = parse_ranges(flat, what)
    count = total_length(ranges)
    if count > MOST_SLOTS:
        raise InvalidArgument(f"{count} {what}s are more than {MOST_SLOTS}: copy them in several calls")
    pages = merge(pages_of(ranges, space.model.page_size))
    space.pages.check_owned(pages)
    return ranges, pages


def _hazard(
    space: AddressSpace, queue: int, write: Sequence[Range], from_pages: Sequence[Range], to_pages: Sequence[Range]
) -> int:
    if not space.pages.none_filled(write):
        if space.runs:
            overwritten = slots_in(write)[is_token(space.pages.held_at(write))]
            space.runs.check_emptied(set((overwritten // space.model.page_size).tolist()))
        return space.seq  # earlier commands may read what is overwritten
    pages = (*from_pages, *to_pages)
    after = space.hazards.of_emptied(addresses(pages)) if space.hazards.rewrites else 0
    return after if space.has_one_queue else max(after, space.hazards.of_pages(queue, pages))


class CopyBatch(Batch[CopyCommand]):
    """One copy of a queue in a wave: the next one may read what it writes."""

    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._queues: set[Hashable] = set()
        self._left = MOST_SLOTS
        self._ends: array[int] = array("i", [0])
        self._sources: array[int] = array("i")
        self._targets: array[int] = array("i")

    def try_add(self, queue: Hashable, command: CopyCommand, holdings: Holdings, done: int) -> int:
        size = command.size
        if queue in self._queues or size > self._left:
            return done
        self._queues.add(queue)
        self._left -= size
        self.commands.append(command)
        for slots, into in ((command.source, self._sources), (command.target, self._targets)):
            append_slots(slots, holdings.pages.physical, self.context.model.page_size, into)
        self._ends.append(len(self._sources))
        return 1

    def build(self) -> CopyKvpage:
        return CopyKvpage(indptr=as_int32(self._ends), source=as_int32(self._sources), target=as_int32(self._targets))


CALL = CopyCommand.call = Call(__name__, issue, stage=Stage.COPY, new_batch=CopyBatch)
