"""Images as calls are given them: tiles of pixels, made for one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pie_inference.protocol import Vision


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """An image of a client, once it is decoded."""

    vision: Vision  # of the model that it was made for
    tiles: Sequence[bytes]  # [tile_size, tile_size, 3] each

    @property
    def vectors(self) -> int:
        """Embeds that it fills."""
        return len(self.tiles) * self.vision.tile_embeds

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.tiles))

    def weight(self, first: int, count: int) -> int:
        """Bytes of the tiles with these vectors."""
        return sum(len(tile) for tile, _, _ in self.parts(first, count))

    def parts(self, first: int, count: int) -> Sequence[tuple[bytes, int, int]]:
        """Tiles with the vectors `first` to `first + count`: of each, its first one of them, and how many."""
        size, end = self.vision.tile_embeds, min(first + count, self.vectors)
        return [
            (self.tiles[tile], max(first - tile * size, 0), min(end, (tile + 1) * size) - max(first, tile * size))
            for tile in range(first // size, -(-end // size))
            if first < end
        ]
