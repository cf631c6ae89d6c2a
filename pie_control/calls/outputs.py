"""What the calls that read output embeds have in common."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_control.resources.kinds import EMBEDS, Resource
from pie_control.resources.ranges import Range, are_sound, parse_ranges, total_length
from pie_inference.protocol import ModelDescription

from .arrays import ends_of
from .kind import Batch, WaveContext, WorkerCommand


def check_output(space: AddressSpace, queue: int, embed: int) -> None:
    """Whether a command may read one output embed. Raises InvalidArgument, NotFound, InvalidState (never filled, or an
    input)."""
    space.check_command(queue)
    embeds = space.embeds
    if not 0 <= embed < len(embeds.positions) or embeds.positions[embed] < 0 or not embeds.is_output[embed]:
        if embed < 0:
            raise InvalidArgument(f"embed {embed} is negative")
        embeds.check_outputs(((embed, embed + 1),))


def check_outputs(space: AddressSpace, queue: int, embeds: Sequence[int], most: int = 0) -> Sequence[Range]:
    """The ranges of embeds, which a command may read in one row each: at most `most`, 0: the rows of a batch. Raises as
    `check_output`."""
    if len(embeds) == 2 and embeds[1] == 1:
        check_output(space, queue, embeds[0])
        return ((embeds[0], embeds[0] + 1),)
    space.check_command(queue)
    ranges = parse_ranges(embeds, "embed")
    count, most = total_length(ranges), most or space.model.max_batch_rows
    if not 1 <= count <= most:
        raise InvalidArgument(f"{count} embeds are named; there may be 1 to {most} in one call")
    space.embeds.check_outputs(ranges)
    return ranges


def note_reading(space: AddressSpace, queue: int, embeds: Sequence[Range]) -> tuple[int, int]:
    """Sequence number and `after` of a command that reads embeds; its logical effect."""
    after = 0 if space.has_one_queue else space.hazards.of_reading(queue, embeds)
    seq = space.next_seq()
    space.hazards.note_reads(embeds, space.stamp(queue), space.has_one_queue)
    return seq, after


class RowsCommand(WorkerCommand, frozen=True):
    """One that reads output embeds."""

    touches = (EMBEDS,)

    outputs: Sequence[Range]

    def fits(self, model: ModelDescription) -> bool:
        return are_sound(self.outputs) and 0 < total_length(self.outputs) <= self.most(model)

    def most(self, model: ModelDescription) -> int:
        """Embeds that one may read."""
        return model.max_batch_rows

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return self.outputs if resource is EMBEDS else ()


S = TypeVar("S", bound=RowsCommand)


class RowsBatch(Batch[S]):
    """A row for each embed of each command. Steps (fused/step.py) are in some, too."""

    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self.most = context.model.max_batch_rows  # rows
        self._embeds: array[int] = array("i")

    def has_room(self) -> bool:
        """Whether a further row can be added."""
        return len(self._embeds) < self.most

    def ends(self) -> NDArray[np.int32]:
        """A 0, and where the rows of each command end."""
        return ends_of(total_length(command.outputs) for command in self.commands)

    def ends_if_several(self) -> NDArray[np.int32] | None:
        """What `ends` gives; None if each command has one row."""
        return None if len(self._embeds) == len(self.commands) else self.ends()

    def try_add(self, queue: Hashable, command: S, holdings: Holdings, done: int) -> int:
        if len(self._embeds) + total_length(command.outputs) > self.most:
            return done
        self.commands.append(command)
        for first, last in command.outputs:
            self._embeds.extend(holdings.embeds.physical[first:last])
        return 1
