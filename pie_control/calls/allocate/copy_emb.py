"""Copies embeds, inputs and outputs of forwards alike: so a fork needs no second run of its last token."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_control.resources.kinds import EMBEDS, Resource
from pie_control.resources.ranges import Range, are_sound, parse_ranges, total_length
from pie_inference.protocol import CopyEmb, ModelDescription

from ..arrays import NotedEmbeds, addresses, as_int32
from ..kind import Batch, Call, Stage, WaveContext, WorkerCommand

MOST_EMBEDS = 1 << 12
"""In one copy, and in one batch of them: the worker holds them twice for a moment."""


class CopyEmbCommand(WorkerCommand, frozen=True):
    """Embeds, of equal number."""

    source: Sequence[Range]
    target: Sequence[Range]

    def fits(self, model: ModelDescription) -> bool:
        count = total_length(self.source)
        return are_sound(self.source, self.target) and 0 < count == total_length(self.target) <= MOST_EMBEDS

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return (*self.source, *self.target) if resource is EMBEDS else ()


def issue(space: AddressSpace, queue: int, source: Sequence[int], target: Sequence[int]) -> None:
    """Two lists of ranges. Raises NotFound, InvalidArgument, InvalidState (a source never filled, a decode run of
    another queue uses a target)."""
    space.check_command(queue)
    read, written = parse_ranges(source, "source embed"), parse_ranges(target, "target embed")
    count = total_length(read)
    if count != total_length(written):
        raise InvalidArgument(
            f"{count} source embeds and {total_length(written)} target embeds; the numbers must be equal"
        )
    if count > MOST_EMBEDS:
        raise InvalidArgument(f"{count} embeds are more than {MOST_EMBEDS}: copy them in several calls")
    if not count:
        return
    space.embeds.filled_positions(read)
    space.embeds.check_owned(written)
    if space.runs:
        space.runs.check_embeds(queue, written)
    hazards = space.hazards
    after = 0 if space.has_one_queue else max(hazards.of_reading(queue, read), hazards.of_writing(queue, written))
    seq = space.next_seq()
    stamp = space.stamp(queue)
    space.embeds.copy(list(addresses(read)), list(addresses(written)))
    hazards.note_reads(read, stamp, space.has_one_queue)
    hazards.note_writes(written, stamp)
    space.issue(CopyEmbCommand(space.owner, queue, seq, after, None, (), read, written))


class CopyEmbBatch(Batch[CopyEmbCommand]):
    """No command reads or writes an embed that an earlier one of its queue writes."""

    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._written = NotedEmbeds()
        self._left = MOST_EMBEDS
        self._ends: array[int] = array("i", [0])
        self._source: array[int] = array("i")
        self._target: array[int] = array("i")

    def try_add(self, queue: Hashable, command: CopyEmbCommand, holdings: Holdings, done: int) -> int:
        count = total_length(command.source)
        if count > self._left or not self._written.disjoint(queue, command.source, command.target):
            return done
        self._left -= count
        self._written.note(queue, command.target)
        self.commands.append(command)
        physical = holdings.embeds.physical
        for ranges, into in ((command.source, self._source), (command.target, self._target)):
            for first, last in ranges:
                into.extend(physical[first:last])
        self._ends.append(len(self._source))
        return 1

    def build(self) -> CopyEmb:
        return CopyEmb(source=as_int32(self._source), target=as_int32(self._target), indptr=as_int32(self._ends))


CALL = CopyEmbCommand.call = Call(__name__, issue, stage=Stage.HAND_ON, new_batch=CopyEmbBatch)
