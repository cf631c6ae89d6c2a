"""The rows of a batch, by their adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..device.tensors import upload
from ..protocol import Array

FEW_ROWS = 256
TILE_OF_FEW = 16
TILE_OF_MANY = 64
"""Rows of a tile at most: the least that multipliers of matrices take, and many, so that weights are read less often,
where there are more than FEW_ROWS rows."""
NO_SLOT = -1


@dataclass(frozen=True)
class Groups:
    """The rows of a batch that have adapters, sorted by adapter, and cut into tiles of one adapter each. An adapter is
    named by its slot, its place in tables of what is loaded."""

    parts: Sequence[tuple[int, int, int]]  # slot, and which of these rows have it: begin and end
    rows: Tensor  # int32 on the device: their places in the batch
    tiles: Tensor  # int32 [tiles, 3] on the device: as `parts`, none with more than `tile_rows` rows
    tile_rows: int

    @classmethod
    def of(cls, slots: Array, device: torch.device) -> Groups | None:
        """`slots`: of each row of the batch, or NO_SLOT. None if no row has one."""
        (rows,) = (slots != NO_SLOT).nonzero()
        if not len(rows):
            return None
        rows = rows[np.argsort(slots[rows], kind="stable")]
        used, begins = np.unique(slots[rows], return_index=True)
        ends = [*begins.tolist()[1:], len(rows)]
        parts = list(zip(used.tolist(), begins.tolist(), ends, strict=True))
        tile_rows = TILE_OF_FEW if len(slots) <= FEW_ROWS else TILE_OF_MANY
        tiles = [
            (slot, first, min(first + tile_rows, end))
            for slot, begin, end in parts
            for first in range(begin, end, tile_rows)
        ]
        numbers = upload(torch.from_numpy(np.concatenate([rows, *tiles]).astype(np.int32)), device)
        return cls(parts, numbers[: len(rows)], numbers[len(rows) :].view(-1, 3), tile_rows)

    @classmethod
    def room(cls, rows: int, most_slots: int, device: torch.device) -> Groups:
        """Memory at fixed addresses for those of any batch of at most so many rows, FEW_ROWS at most; all tiles are
        empty."""
        tiles = rows // TILE_OF_FEW + min(rows, most_slots)
        numbers = torch.zeros(rows + 3 * tiles, dtype=torch.int32, device=device)
        return cls((), numbers[:rows], numbers[rows:].view(-1, 3), TILE_OF_FEW)

    def fill(self, others: Groups) -> None:
        """Takes over those of a batch, in the memory of `room`."""
        self.rows[: len(others.rows)].copy_(others.rows)
        self.tiles[: len(others.tiles)].copy_(others.tiles)
        self.tiles[len(others.tiles) :].zero_()
