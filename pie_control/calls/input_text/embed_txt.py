"""Fills embeds from tokens at positions."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

import numpy as np

from pie_control.errors import InvalidArgument
from pie_control.record import Int32
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings, Reference
from pie_control.resources.kinds import EMBEDS, PAGES, Resource
from pie_control.resources.ranges import Range, are_sound, parse_ranges, total_length
from pie_inference.protocol import EmbedTxt, ModelDescription

from ..arrays import NotedEmbeds, as_int32, join
from ..columns import EmbedColumns
from ..kind import Batch, Call, Command, Stage, WaveContext, WorkerCommand
from ..positions import check_positions
from ..tokens import resolve


class EmbedCommand(WorkerCommand, frozen=True):
    """Tokens with 0 where a reference stands, and the embeds that they fill."""

    touches = (EMBEDS,)

    tokens: Sequence[Int32]
    embeds: Sequence[Range]

    def fits(self, model: ModelDescription) -> bool:
        return are_sound(self.embeds) and 0 < len(self.tokens) == total_length(self.embeds) and self.names(self.tokens)

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return self.embeds if resource is EMBEDS else ()


def issue(
    space: AddressSpace, queue: int, tokens: Sequence[int], positions: Sequence[int], embeds: Sequence[int]
) -> None:
    """Three lists of one length, embeds as ranges. A token 0x8000_0000 + future is what an earlier `sample` of the same
    queue gives. Raises InvalidArgument, NotFound, InvalidState (a decode run of another queue uses an embed)."""
    space.check_command(queue)
    ranges = check_lengths(tokens, positions, embeds)
    if not ranges:
        return
    run(space, queue, ranges, positions, *check(space, queue, tokens, positions, ranges))


def run(
    space: AddressSpace,
    queue: int,
    embeds: tuple[Range, ...],
    positions: Sequence[int],
    tokens: Sequence[int],
    references: Sequence[Reference],
) -> None:
    """Issues what nobody refuses; `tokens` and `references` are those that `check` gave."""
    after = 0 if space.has_one_queue else space.hazards.of_writing(queue, embeds)
    seq = space.next_seq()
    take_effect(space, queue, embeds, positions)
    space.issue(EmbedCommand(space.owner, queue, seq, after, None, references, tokens, embeds))


def check_lengths(tokens: Sequence[int], positions: Sequence[int], embeds: Sequence[int]) -> tuple[Range, ...]:
    """The embeds; raises InvalidArgument."""
    ranges = parse_ranges(embeds, "embed")
    count = len(tokens)
    if len(positions) != count or total_length(ranges) != count:
        raise InvalidArgument(
            f"embed-txt got {count} tokens, {len(positions)} positions and {total_length(ranges)} embeds; "
            "the numbers must be equal"
        )
    return ranges


def check(
    space: AddressSpace, queue: int, tokens: Sequence[int], positions: Sequence[int], embeds: Sequence[Range]
) -> tuple[Sequence[int], Sequence[Reference]]:
    """Tokens with 0 in place of references, and the references. Changes nothing; raises as `issue`."""
    check_positions(positions, space.model.max_context)
    space.embeds.check_owned(embeds)
    if space.runs:
        space.runs.check_embeds(queue, embeds)
    return resolve(space, queue, tokens)


def take_effect(space: AddressSpace, queue: int, embeds: Sequence[Range], positions: Sequence[int]) -> None:
    """What a command that was just numbered changes."""
    space.embeds.fill(embeds, positions, is_output=False)
    space.hazards.note_writes(embeds, space.stamp(queue))


class EmbedBatch(Batch[EmbedCommand]):
    """No command writes an embed that an earlier one of its queue writes. Steps (fused/step.py) are in it, too."""

    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._written = NotedEmbeds()
        self._ends: array[int] = array("i", [0])
        self._embeds: array[int] = array("i")
        self._tokens: array[int] = array("i")
        self._columns: EmbedColumns | None = None

    def try_add(self, queue: Hashable, command: EmbedCommand, holdings: Holdings, done: int) -> int:
        if queue in self._written.first and not self._written.disjoint(queue, command.embeds):
            return done
        self._written.note(queue, command.embeds)
        self.commands.append(command)
        physical = holdings.embeds.physical
        for first, last in command.embeds:
            self._embeds.extend(physical[first:last])
        if command.references:
            self._tokens.extend(holdings.literals(command.tokens, command.references))
        else:
            self._tokens.extend(command.tokens)
        self._ends.append(len(self._tokens))
        return 1

    def extend(self, columns: EmbedColumns) -> None:
        """Adds rows of decode runs."""
        self._columns = columns
        self.rows = len(columns.tokens)

    def lets_pass(self, queue: Hashable, command: Command) -> bool:
        """If it fills other embeds than those of its queue here, and touches no pages."""
        page_size = self.context.model.page_size
        if command.uses(PAGES, page_size):
            return False
        return self._written.disjoint(queue, command.uses(EMBEDS, page_size))

    def build(self) -> EmbedTxt:
        if self._columns is not None and not self.commands:
            indptr = np.arange(self.rows + 1, dtype=np.int32)
            return EmbedTxt(embeds=self._columns.embeds, tokens=self._columns.tokens, indptr=indptr)
        embeds, tokens, ends = as_int32(self._embeds), as_int32(self._tokens), as_int32(self._ends)
        if (more := self._columns) is not None:
            ends = join(ends, ends[-1] + np.arange(1, self.rows + 1, dtype=np.int32))
            embeds, tokens = join(embeds, more.embeds), join(tokens, more.tokens)
        return EmbedTxt(embeds=embeds, tokens=tokens, indptr=ends)


CALL = EmbedCommand.call = Call(__name__, issue, stage=Stage.EMBED, new_batch=EmbedBatch)
