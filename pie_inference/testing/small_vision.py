"""How models without weights take images: tiles of four pixels a side, of which each makes three vectors."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from ..protocol import EmbedImg, ImageLayout, Vision

PLACEHOLDER = 255
"""A byte that no text has."""
VISION = Vision(
    tile_size=4,
    tile_embeds=3,
    longest_edge=8,
    split=True,
    resample=1,
    placeholder=PLACEHOLDER,
    layout=ImageLayout(tile="[{row}.{column}{image}", row_end="\n", whole="]{image}.", alone="({image})"),
    layers=5,
    layer_tokens=4,
    tile_slots=3,
)


class TileRunner:
    """Takes tiles through layers: they change nothing but how far a tile has come."""

    def __init__(self, vision: Vision = VISION) -> None:
        self._vision = vision
        self._slots: dict[int, tuple[int, int]] = {}  # what is left there: hash of a tile, layers behind it

    def run(self, batch: EmbedImg) -> NDArray[np.uint64]:
        """A number for each embed, of the tile and the place of its vector. Raises ValueError for what the protocol
        forbids; then nothing has changed."""
        vision = self._vision
        _check(batch, vision)
        numbers, left = [np.zeros(0, np.uint64)], dict[int, tuple[int, int]]()
        for n, (row, begin, end, slot) in enumerate(
            zip(*(column.tolist() for column in (batch.rows, batch.begins, batch.ends, batch.slots)), strict=True)
        ):
            count = batch.indptr[n + 1] - batch.indptr[n]
            found = (zlib.crc32(batch.tiles[row].tobytes()), 0) if not begin else self._slots.get(slot)
            if found is None or found[1] != begin or not begin < end <= vision.layers:
                raise ValueError(f"a tile goes through the layers {begin} to {end}, and {found} is before them")
            if end < vision.layers:
                if count:
                    raise ValueError(f"a tile fills embeds behind layer {end} of {vision.layers}")
                left[slot] = found[0], end
            places = np.arange(batch.firsts[n], batch.firsts[n] + count)
            numbers.append(np.uint64(found[0]) * np.uint64(4) + places.astype(np.uint64))
        self._slots |= left
        return np.concatenate(numbers)


def _check(batch: EmbedImg, vision: Vision) -> None:
    shape = (vision.tile_size, vision.tile_size, 3)
    if batch.tiles.shape[1:] != shape:
        raise ValueError(f"tiles have shape {batch.tiles.shape}, not {shape} each")
    if batch.rows.max(initial=-1) >= len(batch.tiles) or (batch.rows[batch.begins == 0] < 0).any():
        raise ValueError(f"there are {len(batch.tiles)} tiles")
    if batch.firsts.min(initial=0) < 0 or (batch.firsts + np.diff(batch.indptr)).max(initial=0) > vision.tile_embeds:
        raise ValueError(f"a tile has {vision.tile_embeds} vectors")
    if batch.slots.min(initial=0) < 0 or batch.slots.max(initial=0) >= vision.tile_slots:
        raise ValueError(f"there are {vision.tile_slots} tile slots")
