"""Copies tokens from slots to slots."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument, InvalidState
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_control.resources.kinds import PAGES, Resource
from pie_control.resources.ranges import Range, merge, parse_ranges, total_length
from pie_control.resources.tables.slots import is_token
from pie_inference.protocol import CopyKvpage

from ..arrays import as_int32, ends_of
from ..kind import Batch, Stage, WaveContext, WorkerCommand, define

MOST_SLOTS = 1 << 16
"""In one copy, and in one batch of them: so a wave of copies is done in milliseconds on a GPU."""


class CopyCommand(WorkerCommand, frozen=True):
    """Virtual slots, of equal number."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        """Of many slots, all pages between the first and the last: it is only asked what it may use."""
        if resource is not PAGES:
            return ()
        return [
            (int(slots.min()) // page_size, int(slots.max()) // page_size + 1) for slots in (self.source, self.target)
        ]


def issue(space: AddressSpace, queue: int, source: Sequence[int], target: Sequence[int]) -> None:
    """Slots are page * page_size + offset, as ranges. Raises NotFound, InvalidArgument, InvalidState (empty
    source, a target that a decode run has reserved or sees)."""
    space.check_command(queue)
    (read, from_pages), (write, to_pages) = _slots(space, source, "source slot"), _slots(space, target, "target slot")
    if len(read) != len(write):
        raise InvalidArgument(f"{len(read)} source slots and {len(write)} target slots; the numbers must be equal")
    if not len(read):
        return
    filled = is_token(space.pages.positions[read])
    if not filled.all():
        raise InvalidState(f"source slot {read[~filled][0]} holds no token; copy filled slots only")
    if space.pages.withheld or space.pages.sealed:
        space.pages.check_not_withheld(write)
    after = _hazard(space, queue, write, from_pages, to_pages)
    seq = space.next_seq()
    space.pages.copy(read, write, [page for first, last in to_pages for page in range(first, last)], space.stamp(queue))
    space.issue(CopyCommand(space.owner, queue, seq, after, None, (), read, write))


def _slots(space: AddressSpace, flat: Sequence[int], what: str) -> tuple[NDArray[np.int64], tuple[Range, ...]]:
    """The slots, and the pages that they are in."""
    ranges = parse_ranges(flat, what)
    count, size = total_length(ranges), space.model.page_size
    if count > MOST_SLOTS:
        raise InvalidArgument(f"{count} {what}s are more than {MOST_SLOTS}: copy them in several calls")
    pages = [(first // size, (last - 1) // size + 1) for first, last in ranges]
    space.pages.check_owned(pages)
    pieces = [np.arange(first, last, dtype=np.int64) for first, last in ranges]
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64), merge(pages)


def _hazard(
    space: AddressSpace, queue: int, write: NDArray[np.int64], from_pages: Sequence[Range], to_pages: Sequence[Range]
) -> int:
    overwritten = is_token(space.pages.positions[write])
    if overwritten.any():
        if space.runs:
            space.runs.check_emptied((write[overwritten] // space.model.page_size).tolist())
        return space.seq  # earlier commands may read what is overwritten
    pages = (*from_pages, *to_pages)
    after = space.hazards.of_emptied(page for first, last in pages for page in range(first, last))
    return after if space.has_one_queue else max(after, space.hazards.of_pages(queue, pages))


class CopyBatch(Batch[CopyCommand]):
    """One copy of a queue in a wave: the next one may read what it writes."""

    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._queues: set[Hashable] = set()
        self._left = MOST_SLOTS
        self._sources: list[NDArray[np.int64]] = []
        self._targets: list[NDArray[np.int64]] = []

    def try_add(self, queue: Hashable, command: CopyCommand, holdings: Holdings, done: int) -> int:
        if queue in self._queues or len(command.source) > self._left:
            return done
        self._queues.add(queue)
        self._left -= len(command.source)
        self.commands.append(command)
        size = self.context.model.page_size
        physical = np.frombuffer(holdings.pages.physical, np.int32)  # a view: there may be many pages
        for slots, into in ((command.source, self._sources), (command.target, self._targets)):
            into.append(physical[slots // size].astype(np.int64) * size + slots % size)
        return 1

    def build(self) -> CopyKvpage:
        return CopyKvpage(
            indptr=ends_of(map(len, self._sources)),
            source=as_int32(np.concatenate(self._sources)),
            target=as_int32(np.concatenate(self._targets)),
        )


CALL = CopyCommand.call = define(__name__, issue, stage=Stage.COPY, new_batch=CopyBatch)
