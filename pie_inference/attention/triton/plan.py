"""One planned batch for the Triton kernels: the arguments of each launch, and how its kernel is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kv_cache.pages import KvCache
from ..interface import AttentionSpec
from ..tiles import SPLIT_SLOTS
from . import kernels

FIRST_BLOCK = 1024
FIRST_BLOCKS = 4
"""Size and number of the blocks in which one program looks for the first slot that a window shows."""
MERGED_NUMBERS = 8192
"""Numbers that one program adds at once: as many as fit its registers."""


def pad(size: int, least: int = 1) -> int:
    """The next power of 2."""
    return max(least, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class Tuning:
    """How a kernel is compiled for a shape."""

    block_slots: int
    num_warps: int
    num_stages: int


def tune(padded_dim: int, tile_rows: int, itemsize: int) -> Tuning:
    """How to compile for a shape. Several blocks of keys and values at a time must fit the shared memory of a processor
    (99 KiB where there is least), and the sums of a tile must fit its registers."""
    if itemsize == 4:
        return Tuning(16, 4, 1) if padded_dim > 128 else Tuning(32, 4, 2)
    if padded_dim > 128:
        return Tuning(32, 4 if tile_rows <= 16 else 8, 2)
    return Tuning(64, 4 if tile_rows <= 64 else 8, 3)


def merged_rows(splits: int, tile_rows: int, padded_dim: int) -> int:
    """Rows of a tile whose parts one program adds."""
    return min(tile_rows, max(1, MERGED_NUMBERS // (splits * padded_dim)))


@dataclass(frozen=True)
class Geometry:
    """Sizes that all launches of a backend share."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    itemsize: int

    @property
    def group(self) -> int:
        """Heads that share keys."""
        return self.num_heads // self.num_kv_heads

    @property
    def padded_dim(self) -> int:
        return pad(self.head_dim, 16)

    def constants(self) -> dict[str, int]:
        return {
            "GROUP": self.group,
            "KV_HEADS": self.num_kv_heads,
            "HEAD_DIM": self.head_dim,
            "PADDED_DIM": self.padded_dim,
        }


@dataclass(frozen=True)
class Tiles:
    """A `TileGroup` on the device."""

    count: int
    rows: int
    queries: int
    splits: int
    sequence: Tensor
    first: Tensor
    end: Tensor


@dataclass(frozen=True)
class Parts:
    """Memory for the results of splits; all layers of a batch use it in turn."""

    vectors: Tensor  # float32 [splits, T, heads, head_dim]
    log_sums: Tensor  # float32 [splits, T, heads]


Tables = Mapping[str, Tensor]
"""Tables by the names of the kernels' parameters; tables that a batch does not need are missing."""


class TritonAttentionPlan:
    """Implements `AttentionPlan`."""

    def __init__(
        self,
        cache: KvCache,
        geometry: Geometry,
        specs: Sequence[AttentionSpec],
        windows: Sequence[int | None],
        tables: Tables,
        tiles: Sequence[Tiles],
    ) -> None:
        self._cache = cache
        self._geometry = geometry
        self._specs = specs
        self._windows = windows
        self._tables = tables
        self._tiles = tiles
        self._parts = [self._make_parts(each) for each in tiles]
        self._begins = {window: [torch.empty_like(each.end) for each in tiles] for window in set(windows) if window}

    @property
    def _num_rows(self) -> int:
        return len(self._tables["slots"])

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        geometry = self._geometry
        shape = (self._num_rows, geometry.num_heads, geometry.head_dim)
        output = torch.empty(shape, dtype=query.dtype, device=query.device)
        if self._num_rows:
            self._write(layer, key_value)
        begins = self._begins.get(self._windows[layer] or 0)
        for number, (tiles, parts) in enumerate(zip(self._tiles, self._parts, strict=True)):
            begin = None if begins is None else begins[number]
            self._attend(layer, query, output, tiles, parts, begin)
        return output.view(len(output), -1)

    def _write(self, layer: int, key_value: Tensor) -> None:
        geometry, width = self._geometry, 2 * self._geometry.num_kv_heads
        kernels.write_rows[(self._num_rows,)](
            self._cache.layer(layer),
            key_value,
            self._tables["slots"],
            key_value.stride(0),
            key_value.stride(1),
            PAGE_SIZE=geometry.page_size,
            WIDTH=width,
            HEAD_DIM=geometry.head_dim,
            PADDED_WIDTH=pad(width),
            PADDED_DIM=geometry.padded_dim,
        )

    def _attend(
        self, layer: int, query: Tensor, output: Tensor, tiles: Tiles, parts: Parts | None, begin: Tensor | None
    ) -> None:
        spec, geometry, tables = self._specs[layer], self._geometry, self._tables
        tuning = tune(geometry.padded_dim, tiles.rows, geometry.itemsize)
        kernels.attend_tiles[(tiles.count, geometry.num_kv_heads, tiles.splits)](
            output if parts is None else parts.vectors,
            None if parts is None else parts.log_sums,
            query,
            self._cache.layer(layer),
            tables["row_start"],
            tables["num_keys"],
            tables["piece_start"],
            tables["piece_page"],
            tables.get("piece_bits"),
            tables.get("piece_rank"),
            tiles.sequence,
            tiles.first,
            begin,
            tiles.end,
            tables.get("mask_start"),
            tables.get("mask_bits"),
            None if begin is None else self._cache.device_positions(),
            None if begin is None else tables["query_positions"],
            spec.scale,
            spec.soft_cap or 0.0,
            self._windows[layer] or 0,
            tiles.splits,
            self._num_rows,
            query.stride(0),
            query.stride(1),
            **geometry.constants(),
            PAGE_SIZE=geometry.page_size,
            TILE_ROWS=tiles.rows,
            BLOCK_SLOTS=tuning.block_slots,
            HOLES="piece_bits" in tables,
            MASKED="mask_bits" in tables,
            WINDOWED=begin is not None,
            CAPPED=spec.soft_cap is not None,
            SPLIT=parts is not None,
            LEAST_SHARE=SPLIT_SLOTS,
            num_warps=tuning.num_warps,
            num_stages=tuning.num_stages,
        )
        if parts is not None:
            self._merge(output, tiles, parts)

    def _merge(self, output: Tensor, tiles: Tiles, parts: Parts) -> None:
        splits = pad(tiles.splits)
        rows = merged_rows(splits, tiles.rows, self._geometry.padded_dim)
        kernels.merge_splits[(tiles.count, self._geometry.num_kv_heads, tiles.rows // rows)](
            output,
            parts.vectors,
            parts.log_sums,
            self._tables["row_start"],
            tiles.sequence,
            tiles.first,
            tiles.splits,
            self._num_rows,
            **self._geometry.constants(),
            TILE_ROWS=tiles.rows,
            PADDED_SPLITS=splits,
            ROWS=rows,
        )

    def _make_parts(self, tiles: Tiles) -> Parts | None:
        if tiles.splits == 1:
            return None
        shape = (tiles.splits, self._num_rows, self._geometry.num_heads)
        device = self._cache.device
        return Parts(
            torch.empty((*shape, self._geometry.head_dim), dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
        )

    def find_begins(self, longest: int) -> None:
        """Finds, for each window and each tile, the first slot that the window shows. `longest`: slots of the longest
        tile."""
        for window, begins in self._begins.items():
            for tiles, begin in zip(self._tiles, begins, strict=True):
                self._find_begin(window, tiles, begin, longest)

    def _find_begin(self, window: int, tiles: Tiles, begin: Tensor, longest: int) -> None:
        tables = self._tables
        begin.copy_(tiles.end)
        kernels.find_first_visible[(tiles.count, -(-max(1, longest) // (FIRST_BLOCKS * FIRST_BLOCK)))](
            begin,
            tiles.sequence,
            tiles.first,
            tiles.end,
            tables["row_start"],
            tables["piece_start"],
            tables["piece_page"],
            tables.get("piece_bits"),
            self._cache.device_positions(),
            tables["query_positions"],
            window,
            PAGE_SIZE=self._geometry.page_size,
            QUERIES=tiles.queries,
            PADDED_QUERIES=pad(tiles.queries),
            HOLES="piece_bits" in tables,
            BLOCK_SLOTS=FIRST_BLOCK,
            BLOCKS=FIRST_BLOCKS,
        )
