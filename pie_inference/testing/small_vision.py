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
    max_batch_tiles=8,
)


def tile_hashes(batch: EmbedImg) -> NDArray[np.uint64]:
    """A number for each embed, of the tile and the place of its vector. Raises ValueError for what the protocol
    forbids."""
    shape = (VISION.tile_size, VISION.tile_size, 3)
    if batch.tiles.shape[1:] != shape or len(batch.tiles) > VISION.max_batch_tiles:
        raise ValueError(f"tiles have shape {batch.tiles.shape}, not at most {VISION.max_batch_tiles} of {shape}")
    lengths = np.diff(batch.indptr)
    if batch.firsts.min(initial=0) < 0 or (batch.firsts + lengths).max(initial=0) > VISION.tile_embeds:
        raise ValueError(f"a tile has {VISION.tile_embeds} vectors")
    hashes = np.array([zlib.crc32(tile.tobytes()) for tile in batch.tiles], np.uint64)[batch.rows]
    places = np.arange(len(batch.embeds)) - np.repeat(batch.indptr[:-1] - batch.firsts, lengths)
    numbers: NDArray[np.uint64] = np.repeat(hashes, lengths) * np.uint64(4) + places.astype(np.uint64)
    return numbers
