"""Fills embeds with the vectors of an image.

A call becomes a command for each tile, a long one: its parts are the layers of the vision tower, counted in the input
tokens that they are worth. So it goes through as many of them in a wave as those who decode can wait for
(scheduling/forming/chunks.py), and its state stays on the worker in between. Pixels travel with its first part.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from itertools import accumulate

import numpy as np

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_control.resources.intervals import take_intervals
from pie_control.resources.kinds import EMBEDS, Resource
from pie_control.resources.quotas import check_quota
from pie_control.resources.ranges import Range, are_sound, parse_ranges, total_length
from pie_inference.protocol import EmbedImg, ModelDescription, Vision

from ..arrays import NotedEmbeds, as_int32, ends_of
from ..kind import Call, Handle, LongBatch, LongCommand, Stage, WaveContext
from ..positions import check_positions
from .image import Image


class ImageCommand(LongCommand, frozen=True):
    """Vectors of one tile, from `first` on, and the embeds that they fill."""

    tile: bytes
    first: int
    embeds: Sequence[Range]
    unit: int  # what a layer is worth

    @property
    def bounded(self) -> bool:
        return True

    def fits(self, model: ModelDescription) -> bool:
        vision, count = model.vision, total_length(self.embeds)
        if vision is None or not are_sound(self.embeds) or len(self.tile) != 3 * vision.tile_size**2:
            return False
        worth = (self.size, self.whole, self.unit) == (vision.tile_tokens, False, vision.layer_tokens)
        return worth and 0 <= self.first <= vision.tile_embeds - count

    def uses(self, resource: Resource, page_size: int) -> Sequence[Range]:
        return self.embeds if resource is EMBEDS else ()


def issue(
    space: AddressSpace, queue: int, image: Image, first: int, positions: Sequence[int], embeds: Sequence[int]
) -> None:
    """Vectors of the image from `first` on, as many as there are positions and embeds (ranges). Raises InvalidArgument,
    NotFound, InvalidState (a decode run of another queue uses an embed), QuotaExceeded."""
    space.check_command(queue)
    ranges = parse_ranges(embeds, "embed")
    count = len(positions)
    if total_length(ranges) != count:
        raise InvalidArgument(f"embed-img got {count} positions and {total_length(ranges)} embeds; give equally many")
    if image.vision != space.model.vision:
        raise InvalidArgument(f"the image was loaded for another model than {space.model.name}: load it for this one")
    if first + count > image.vectors:
        raise InvalidArgument(f"the image has {image.vectors} vectors: {first} to {first + count} are not all there")
    if not count:
        return
    check_positions(positions, space.model.max_context)
    space.embeds.check_owned(ranges)
    if space.runs:
        space.runs.check_embeds(queue, ranges)
    parts, vision = image.parts(first, count), image.vision
    check_quota(space.waiting, len(parts), space.ledger.quota.commands, "waiting commands", "wait for results first")
    ends = list(accumulate((length for _, _, length in parts), initial=0))
    for (tile, start, length), done in zip(parts, ends, strict=False):
        own = take_intervals(ranges, done, done + length)
        after = 0 if space.has_one_queue else space.hazards.of_writing(queue, own)
        seq = space.next_seq()
        space.embeds.fill(own, positions[done : done + length], is_output=False)
        space.hazards.note_writes(own, space.stamp(queue))
        shape = vision.tile_tokens, False, tile, start, own, vision.layer_tokens
        space.issue(ImageCommand(space.owner, queue, seq, after, None, (), *shape))


class ImageBatch(LongBatch[ImageCommand]):
    """No command fills an embed that an earlier one of its queue fills. Each tile is there once."""

    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._written = NotedEmbeds()
        self._embeds: array[int] = array("i")
        self._lengths: list[int] = []
        self._tiles: dict[bytes, int] = {}  # those that begin
        self._rows: list[int] = []  # of these
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._slots: list[int] = []

    def can_add(self, queue: Hashable, command: ImageCommand) -> bool:
        return queue not in self._written.first or self._written.disjoint(queue, command.embeds)

    def room_for(self, command: ImageCommand) -> int:
        """There is room as long as fewer tiles are under way than there are slots."""
        return command.size if self.context.tile_slots.has_room(command.owner, command.seq) else 0

    def waits(self, command: ImageCommand, holdings: Holdings) -> bool:
        if self.context.tile_slots.has_room(command.owner, command.seq, holdings.standing.service_class):
            return False
        self.context.tile_slots.wait(holdings.rank(command.seq))
        return True

    def reserve(self, command: ImageCommand, parts: int) -> None:
        self.context.tile_slots.take(command.owner, command.seq)

    def add(self, queue: Hashable, command: ImageCommand, holdings: Holdings, begin: int, end: int) -> None:
        """Adds the layers that the parts `begin` .. `end` are worth."""
        layers = self._vision.layer_tokens
        self.commands.append(command)
        self.work += end - begin
        self._rows.append(-1 if begin else self._tiles.setdefault(command.tile, len(self._tiles)))
        self._begins.append(begin // layers)
        self._ends.append(end // layers)
        self._slots.append(self.context.tile_slots.take(command.owner, command.seq))
        before = len(self._embeds)
        if end == command.size:
            self.context.tile_slots.release(command.owner, command.seq)
            self._written.note(queue, command.embeds)
            for first, last in command.embeds:
                self._embeds.extend(holdings.embeds.physical[first:last])
        self._lengths.append(len(self._embeds) - before)

    @property
    def _vision(self) -> Vision:
        vision = self.context.model.vision
        assert vision is not None, "the call was refused"
        return vision

    def build(self) -> EmbedImg:
        size = self._vision.tile_size
        return EmbedImg(
            rows=as_int32(self._rows),
            begins=as_int32(self._begins),
            ends=as_int32(self._ends),
            slots=as_int32(self._slots),
            firsts=as_int32([command.first for command in self.commands]),
            embeds=as_int32(self._embeds),
            indptr=ends_of(self._lengths),
            tiles=np.frombuffer(b"".join(self._tiles), np.uint8).reshape(len(self._tiles), size, size, 3),
        )


def _argument_bytes(image: Image, first: int, positions: Sequence[int], embeds: Sequence[int]) -> int:
    return image.weight(first, len(positions))


CALL = ImageCommand.call = Call(
    __name__,
    issue,
    argument_bytes=_argument_bytes,
    handles={"image": Handle(Image)},
    stage=Stage.IMAGE,
    new_batch=ImageBatch,
)
