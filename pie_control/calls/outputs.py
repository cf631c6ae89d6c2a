"""What the calls that read output embeds have in common."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import TypeVar

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_control.resources.kinds import EMBEDS, Resource
from pie_control.resources.ranges import Range, parse_ranges, total_length

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
    """The ranges of several embeds, which a command may read in one row each: at most `most`, 0: the rows of a batch.
    Raises as `check_output`."""
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


class RowCommand(WorkerCommand, frozen=True):
    """One that reads one output embed."""

    embed: int

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return ((self.embed, self.embed + 1),) if resource is EMBEDS else ()


class RowsCommand(WorkerCommand, frozen=True):
    """One that reads several."""

    embeds: Sequence[Range]

    @property
    def count(self) -> int:
        return total_length(self.embeds)

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return self.embeds if resource is EMBEDS else ()


R = TypeVar("R", bound=RowCommand)
S = TypeVar("S", bound=RowsCommand)


class RowBatch(Batch[R]):
    """One row for each command."""

    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._embeds: list[int] = []

    def has_room(self) -> bool:
        """Whether a further row can be added."""
        return len(self.commands) < self.context.model.max_batch_rows

    def try_add(self, queue: Hashable, command: R, holdings: Holdings, done: int) -> int:
        if not self.has_room():
            return done
        self.commands.append(command)
        self._embeds.append(holdings.embeds.physical[command.embed])
        return 1


class RowsBatch(Batch[S]):
    """Several rows for each command."""

    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self.most = context.model.max_batch_rows  # rows
        self._embeds: array[int] = array("i")

    def try_add(self, queue: Hashable, command: S, holdings: Holdings, done: int) -> int:
        if len(self._embeds) + command.count > self.most:
            return done
        self.commands.append(command)
        for first, last in command.embeds:
            self._embeds.extend(holdings.embeds.physical[first:last])
        return 1
