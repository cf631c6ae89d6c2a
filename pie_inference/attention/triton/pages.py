"""Attention over pages with Triton kernels: for GPUs without FlashInfer, and for models that FlashInfer cannot serve.

One launch writes the new keys and values. One launch for each group of tiles (`attention.tiles`) attends. If the keys
of a group are split, one more adds the parts. Causal rows, masked rows, holes and windows share these launches.
Everything that depends on the batch is computed on the host and uploaded in one copy; nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from ...device.machine import count_processors
from ...kv_cache.pages import KvCache
from ...protocol import Array, Forward
from ..interface import AttentionSpec
from ..packed_upload import PackedUpload, make_room, upload_arrays
from ..ragged import Ragged, check
from ..tiles import (
    SMALLEST_TILE,
    SPLIT_SLOTS,
    TileGroup,
    choose_splits,
    cut_pieces,
    cut_tiles,
    mask_starts,
    tile_rows,
)
from .plan import Geometry, Tables, Tiles, TritonAttentionPlan


class TritonAttention:
    """Implements `AttentionBackend`. `processors`: their number in the device, which says how much work fills it."""

    def __init__(
        self, cache: KvCache, num_heads: int, specs: Sequence[AttentionSpec], processors: int | None = None
    ) -> None:
        shape = cache.shape
        self._cache = cache
        self._specs = tuple(specs)
        self._geometry = Geometry(num_heads, shape.num_kv_heads, shape.head_dim, shape.page_size, shape.dtype.itemsize)
        self._processors = processors or count_processors(cache.device)
        if any(spec.window for spec in specs):
            cache.device_positions()

    def plan(self, batch: Forward) -> TritonAttentionPlan:
        ragged = check(batch, self._cache.shape.page_size, self._cache.num_pages)
        self._cache.note_positions(batch.q_slots, batch.q_positions)
        arrays, groups = self._tables(batch, ragged)
        tables = upload_arrays(arrays, self._cache.device)
        tiles = [self._tiles(group, number, tables) for number, group in enumerate(groups)]
        windows = effective_windows(self._specs, int(batch.q_positions.max(initial=0)))
        plan = TritonAttentionPlan(self._cache, self._geometry, self._specs, windows, tables, tiles)
        plan.find_begins(max((group.longest for group in groups), default=0))
        return plan

    def compile(self) -> None:
        """Runs the kernels that most batches need, which compiles them. Raises whatever compilers and drivers do. The
        cache must not be in use."""
        geometry, cache = self._geometry, self._cache
        batch = _sample(geometry.page_size, tile_rows(geometry.group, SMALLEST_TILE) // geometry.group + 1)
        heads = geometry.num_heads + 2 * geometry.num_kv_heads
        rows = torch.zeros(len(batch.q_slots), heads, geometry.head_dim, dtype=cache.shape.dtype, device=cache.device)
        first = {spec: layer for layer, spec in reversed([*enumerate(self._specs)])}
        for position in {max((spec.window or 0 for spec in self._specs), default=0), 0}:  # where windows hide, or not
            plan = self.plan(msgspec.structs.replace(batch, q_positions=batch.q_positions + np.int32(position)))
            for layer in first.values():
                plan.attend(layer, rows[:, : geometry.num_heads], rows[:, geometry.num_heads :])
        cache.note_positions(np.zeros(1, np.int32), np.zeros(1, np.int32))
        if cache.device.type == "cuda":
            torch.cuda.synchronize(cache.device)  # what goes wrong there is told here

    def can_replay(self, batch: Forward) -> bool:
        rows = bool((np.diff(batch.q_indptr) == 1).all()) and bool(batch.dense.all())
        return rows and batch.mask_bits is None and len(batch.kv_pages) <= self._graph_pages

    @property
    def _graph_pages(self) -> int:
        """The number of pages that fit the plan of a graph. A shared page counts once for each sequence, so this may be
        more than the cache has."""
        return 2 * self._cache.num_pages

    def graph_plan(self, size: int) -> TritonGraphPlan:
        cache, group = self._cache, self._geometry.group
        rows = tile_rows(group, SMALLEST_TILE)
        longest = self._graph_pages * self._geometry.page_size
        splits = choose_splits(size * self._geometry.num_kv_heads, longest, self._processors)
        room = make_room(graph_tables(size, self._graph_pages), cache.device)
        own = (room.tensors[name] for name in ("sequence", "first", "num_keys"))
        tiles = Tiles(size, rows, 1, splits, *own)
        windows = [spec.window for spec in self._specs]
        plan = TritonAttentionPlan(cache, self._geometry, self._specs, windows, room.tensors, [tiles])
        graph = TritonGraphPlan(size, cache, room, plan)
        graph.warm_up(len(self._specs), self._geometry.num_heads)
        return graph

    def _tables(self, batch: Forward, ragged: Ragged) -> tuple[dict[str, Array], list[TileGroup]]:
        pieces = cut_pieces(batch, ragged)
        groups = cut_tiles(batch, ragged, pieces, self._geometry.page_size, self._geometry.group)
        arrays = {
            "slots": batch.q_slots,
            "query_positions": batch.q_positions,
            "row_start": batch.q_indptr,
            "num_keys": ragged.num_keys.astype(np.int32),
            "piece_start": pieces.start,
            "piece_page": pieces.page,
        }
        if pieces.bits is not None and pieces.rank is not None:
            arrays |= {"piece_bits": pieces.bits, "piece_rank": pieces.rank}
        if batch.mask_bits is not None:
            arrays |= {"mask_start": mask_starts(batch), "mask_bits": batch.mask_bits}
        for number, group in enumerate(groups):
            arrays |= {f"sequence{number}": group.sequence, f"first{number}": group.first, f"end{number}": group.end}
        return arrays, groups

    def _tiles(self, group: TileGroup, number: int, tables: Tables) -> Tiles:
        count = len(group.sequence)
        splits = choose_splits(count * self._geometry.num_kv_heads, group.longest, self._processors)
        own = (tables[f"{name}{number}"] for name in ("sequence", "first", "end"))
        return Tiles(count, group.rows, group.queries, splits, *own)


def _sample(page_size: int, queries: int) -> Forward:
    """A batch of one query, and of so many, all in the first slot, with keys to split, all in the first page."""
    pages, rows = -(-2 * SPLIT_SLOTS // page_size), 1 + queries
    every, none = np.zeros(2 * pages, np.int32), np.zeros(0, np.int32)
    return Forward(
        q_indptr=np.array([0, 1, rows], np.int32),
        q_embeds=np.zeros(rows, np.int32),
        q_positions=np.zeros(rows, np.int32),
        q_slots=np.zeros(rows, np.int32),
        kv_indptr=np.array([0, pages, 2 * pages], np.int32),
        kv_pages=every,
        kv_begins=every,
        kv_ends=every + np.int32(page_size),
        dense=np.ones(2, np.bool_),
        out_rows=none,
        out_embeds=none,
    )


class TritonGraphPlan:
    """Implements `GraphPlan`: a `TritonAttentionPlan` whose tables are loaded again for each batch."""

    def __init__(self, size: int, cache: KvCache, room: PackedUpload, plan: TritonAttentionPlan) -> None:
        self.size = size
        self._cache = cache
        self._room = room
        self._plan = plan

    def update(self, batch: Forward) -> None:
        ragged = check(batch, self._cache.shape.page_size, self._cache.num_pages)
        self._cache.note_positions(batch.q_slots, batch.q_positions)
        num_keys = ragged.num_keys.astype(np.int32)
        self._load(batch.q_slots, batch.q_positions, num_keys, batch.kv_indptr, batch.kv_pages)

    def warm_up(self, num_layers: int, num_heads: int) -> None:
        """Compiles the kernels before they are recorded, since a recording cannot compile. Writes only to the scratch
        slot."""
        none, shape = np.zeros(0, np.int32), self._cache.shape
        self._load(none, none, none, none, none)
        rows = torch.zeros(self.size, num_heads + 2 * shape.num_kv_heads, shape.head_dim, dtype=shape.dtype)
        rows = rows.to(self._cache.device)
        for layer in range(num_layers):
            self.attend(layer, rows[:, :num_heads], rows[:, num_heads:])

    def _load(self, slots: Array, positions: Array, num_keys: Array, piece_start: Array, pages: Array) -> None:
        self._room.fill(
            {
                "slots": self._filled_up(slots, self._cache.scratch_slot),
                "query_positions": self._filled_up(positions, 0),
                "row_start": np.arange(self.size + 1, dtype=np.int32),
                "num_keys": self._filled_up(num_keys, 0),
                "sequence": np.arange(self.size, dtype=np.int32),
                "first": np.zeros(self.size, np.int32),
                "piece_start": self._filled_up(piece_start, 0, self.size + 1),
                "piece_page": pages,
            }
        )
        self._plan.find_begins(int(num_keys.max(initial=0)))

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        return self._plan.attend(layer, query, key_value)

    def _filled_up(self, values: Array, filler: int, count: int | None = None) -> Array:
        filled = np.full(count or self.size, filler, np.int32)
        filled[: len(values)] = values
        return filled


def graph_tables(size: int, num_pages: int) -> dict[str, tuple[str, int]]:
    """The tables of a graph's plan. The table of pages comes last, so that only its used part is uploaded."""
    single = ("slots", "query_positions", "num_keys", "sequence", "first")
    counts = {**dict.fromkeys(single, size), "row_start": size + 1, "piece_start": size + 1, "piece_page": num_pages}
    return {name: ("int32", count) for name, count in counts.items()}


def effective_windows(specs: Sequence[AttentionSpec], highest: int) -> list[int | None]:
    """The window of each layer; None if it hides nothing from queries at positions up to `highest`."""
    return [spec.window if spec.window and spec.window <= highest else None for spec in specs]
