"""Fills embeds with the vectors of an image.

A call becomes a command for each tile: the worker takes few of them in a wave, so that an image of many tiles takes
several waves, and those who decode are not kept waiting. Pixels travel with the command that needs them.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from itertools import accumulate

import numpy as np

from pie_control.errors import InvalidArgument
from pie_control.resources.address_space import AddressSpace
from pie_control.resources.holdings import Holdings
from pie_control.resources.kinds import EMBEDS, Resource
from pie_control.resources.quotas import check_quota
from pie_control.resources.ranges import Range, parse_ranges, total_length
from pie_inference.protocol import EmbedImg, ModelDescription, Vision

from ..arrays import WrittenEmbeds, as_int32, ends_of
from ..kind import Batch, BulkyCommand, Stage, WaveContext, define
from ..positions import check_positions
from .image import Image


class ImageCommand(BulkyCommand, frozen=True):
    """Vectors of one tile, from `first` on, and the embeds that they fill."""

    tile: bytes
    first: int
    embeds: Sequence[Range]

    def check(self, model: ModelDescription) -> None:
        vision = model.vision
        if vision is None:
            raise ValueError(f"model {model.name} takes no images")
        if len(self.tile) != 3 * vision.tile_size**2:
            raise ValueError(f"a tile has {len(self.tile)} bytes, not 3 for each of {vision.tile_size}^2 pixels")
        count = total_length(self.embeds)
        if not 0 <= self.first <= vision.tile_embeds - count:
            raise ValueError(f"a tile has {vision.tile_embeds} vectors: {self.first} to {self.first + count} are not")

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
    parts = image.parts(first, count)
    check_quota(space.waiting, len(parts), space.ledger.quota.commands, "waiting commands", "wait for results first")
    ends = list(accumulate((length for _, _, length in parts), initial=0))
    for (tile, start, length), done in zip(parts, ends, strict=False):
        own = _cut(ranges, done, done + length)
        after = 0 if space.has_one_queue else space.hazards.of_writing(queue, own)
        seq = space.next_seq()
        space.embeds.fill_inputs(own, positions[done : done + length])
        space.hazards.note_writes(own, space.stamp(queue))
        space.issue(ImageCommand(space.owner, queue, seq, after, None, (), tile, start, own))


def _cut(ranges: Sequence[Range], begin: int, end: int) -> Sequence[Range]:
    """The addresses `begin` to `end`, as ranges count them."""
    found = []
    for first, last in ranges:
        size = last - first
        if begin < size and end > 0:
            found.append((first + max(begin, 0), first + min(end, size)))
        begin, end = begin - size, end - size
    return tuple(found)


class ImageBatch(Batch[ImageCommand]):
    """No command writes an embed that an earlier one of its queue writes. Each tile is there once."""

    def __init__(self, context: WaveContext) -> None:
        super().__init__(context)
        self._written = WrittenEmbeds()
        self._embeds: array[int] = array("i")
        self._lengths: list[int] = []
        self._rows: dict[bytes, int] = {}  # of tiles

    def try_add(self, queue: Hashable, command: ImageCommand, holdings: Holdings, done: int) -> int:
        vision = self.context.model.vision
        assert vision is not None, "the call was refused"
        if command.tile not in self._rows and self._rows and self._is_full(vision):
            return done
        if queue in self._written.first and not self._written.disjoint(queue, command.embeds):
            return done
        self._written.note(queue, command.embeds)
        self.commands.append(command)
        self._rows.setdefault(command.tile, len(self._rows))
        self.work = len(self._rows) * vision.tile_tokens
        before = len(self._embeds)
        for first, last in command.embeds:
            self._embeds.extend(holdings.embeds.physical[first:last])
        self._lengths.append(len(self._embeds) - before)
        return 1

    def _is_full(self, vision: Vision) -> bool:
        """One tile goes in any case; more of them if those who decode beside them do not wait for long."""
        return len(self._rows) >= vision.max_batch_tiles or self.work + vision.tile_tokens > self.context.most

    def build(self) -> EmbedImg:
        vision = self.context.model.vision
        assert vision is not None
        pixels = np.frombuffer(b"".join(self._rows), np.uint8)
        return EmbedImg(
            rows=as_int32([self._rows[command.tile] for command in self.commands]),
            firsts=as_int32([command.first for command in self.commands]),
            embeds=as_int32(self._embeds),
            indptr=ends_of(self._lengths),
            tiles=pixels.reshape(len(self._rows), vision.tile_size, vision.tile_size, 3),
        )


CALL = ImageCommand.call = define(__name__, issue, stage=Stage.IMAGE, new_batch=ImageBatch)
