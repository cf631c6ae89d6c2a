"""Attention with FlashInfer, for NVIDIA GPUs.

The sequences of a batch are sorted by the kernel that they need: for one query or several, the causal rule or a mask,
page lists or slot lists (`attention.page_tables`). Layers with the same `AttentionSpec` share one plan.

Our windows count positions, FlashInfer's count keys. If a sequence's keys have consecutive positions, both are the
same; otherwise the window becomes part of a mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...device.flashinfer_library import FlashInfer
from ...device.machine import count_processors
from ...device.tensors import upload
from ...kv_cache.pages import KvCache
from ...protocol import Forward
from .. import page_tables
from ..interface import AttentionSpec
from ..page_tables import Masks, PageTable
from ..ragged import Booleans, Integers
from .cache_views import FEW_ROWS, CacheViews
from .graph import FlashInferGraphPlan
from .kernels import Kernel, Kernels, Shape, Views, workspace_bytes

GRAPH_PAGES = 2
"""How many pages a recorded batch may list for each page of the cache: more than one, because sequences share pages."""


@dataclass(frozen=True)
class Step:
    """A planned kernel for some rows of a batch."""

    kernel: Kernel
    rows: slice | Tensor  # rows of the batch
    by_slots: bool  # whether it sees the cache by single slots

    def run(self, query: Tensor, views: Views, out: Tensor) -> None:
        """Runs the kernel on its rows. `query` and `out` have all rows of the batch."""
        if isinstance(self.rows, slice):
            self.kernel.run(query[self.rows], views, out[self.rows])
            return
        own = torch.empty(len(self.rows), *out.shape[1:], dtype=out.dtype, device=out.device)
        self.kernel.run(query.index_select(0, self.rows), views, own)
        out.index_copy_(0, self.rows, own)


@dataclass(frozen=True)
class Steps:
    """The kernels for all rows of a batch, for layers with one spec."""

    steps: tuple[Step, ...]
    blind: Tensor | None  # rows that see no key: kernels write the mean of all values there, or worse


class FlashInferAttention:
    """Implements `AttentionBackend` and `GraphBackend`."""

    def __init__(self, cache: KvCache, num_heads: int, specs: Sequence[AttentionSpec], library: FlashInfer) -> None:
        self._cache = cache
        self._specs = tuple(specs)
        shape = Shape(cache.shape, num_heads, cache.device)
        room = workspace_bytes(shape, count_processors(cache.device), FEW_ROWS)
        self._kernels = Kernels(library, shape, room)
        self._views = CacheViews(cache, library)
        self._graph_capacity = GRAPH_PAGES * cache.num_pages

    def plan(self, batch: Forward) -> FlashInferPlan:
        cache = self._cache
        planner = _Planner(self._kernels, self._views, batch)
        cache.positions[batch.q_slots] = batch.q_positions
        highest = int(batch.q_positions.max(initial=0))
        effective = [_without_idle_window(spec, highest) for spec in self._specs]
        planned = {spec: planner.steps(spec) for spec in dict.fromkeys(effective)}
        return FlashInferPlan(self._views, self._views.places(batch.q_slots), [planned[spec] for spec in effective])

    def compile(self) -> None:
        """Compiles the kernels that it may need and that are not compiled yet, which takes up to a minute for each
        kind. Raises RuntimeError. The cache must not be in use."""
        highest = max([spec.window or 0 for spec in self._specs], default=0)
        for position in (highest, 0):  # with windows, and where they hide nothing yet
            self.plan(_sample_of_everything(position))
        self._cache.positions[:] = 0
        shape, device = self._cache.shape, self._cache.device
        row = torch.zeros(1, 2 * shape.num_kv_heads, shape.head_dim, dtype=shape.dtype, device=device)
        self._views.write(0, row, self._views.places(np.zeros(1, np.int32)))

    def can_replay(self, batch: Forward) -> bool:
        """Accepts decode batches with page lists and windows by rank."""
        planner = _Planner(self._kernels, self._views, batch)
        if not planner.decodes_by_pages or len(batch.kv_pages) > self._graph_capacity:
            return False
        if all(spec.window is None for spec in self._specs):
            return True
        with _noted(self._cache, batch):
            return planner.windows_are_by_rank()

    def graph_plan(self, size: int) -> FlashInferGraphPlan:
        return FlashInferGraphPlan(size, self._graph_capacity, self._kernels, self._views, self._specs)


class FlashInferPlan:
    """Implements `AttentionPlan`."""

    def __init__(self, views: CacheViews, places: Tensor, layers: Sequence[Steps]) -> None:
        self._views = views
        self._places = places
        self._layers = layers

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        planned = self._layers[layer]
        self._views.write(layer, key_value, self._places)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for step in planned.steps:
            step.run(query, self._views.layer(layer, by_slots=step.by_slots), out)
        if planned.blind is not None:
            out.index_fill_(0, planned.blind, 0)
        return out.view(len(out), -1)


def _sample_of_everything(position: int) -> Forward:
    """A batch with decode, prefill and a mask, all in the first slots of the first page."""
    numbers = np.arange(5, dtype=np.int32)
    return Forward(
        q_indptr=np.array([0, 1, 3, 4], np.int32),
        q_embeds=numbers[:4],
        q_positions=np.array([0, 0, 1, 0], np.int32) + np.int32(position),
        q_slots=np.array([0, 0, 1, 0], np.int32),
        kv_indptr=numbers[:4],
        kv_pages=np.zeros(3, np.int32),
        kv_begins=np.zeros(3, np.int32),
        kv_ends=np.array([1, 2, 1], np.int32),
        dense=np.ones(3, np.bool_),
        out_rows=numbers[:0],
        out_embeds=numbers[:0],
        mask_indptr=np.array([0, 0, 0, 1], np.int64),
        mask_bits=np.ones(1, np.uint8),
    )


def _without_idle_window(spec: AttentionSpec, highest: int) -> AttentionSpec:
    """Drops a window that hides nothing at positions up to `highest`: it would need kernels of its own."""
    return replace(spec, window=None) if spec.window is not None and spec.window > highest else spec


class _Planner:
    """Sorts the sequences of one batch, and plans their kernels for one spec after another. Raises BatchError."""

    def __init__(self, kernels: Kernels, views: CacheViews, batch: Forward) -> None:
        self._kernels = kernels
        self._cache = views.cache
        self._batch = batch
        self._ragged = views.check(batch)
        self._listed = _fill_pages(batch)
        self._masked = _have_masks(batch)
        self._follow: Booleans | None = None

    @property
    def decodes_by_pages(self) -> bool:
        """Whether each sequence has one query and a page list."""
        return bool((self._ragged.num_rows == 1).all() and self._listed.all()) and not self._masked.any()

    def windows_are_by_rank(self) -> bool:
        """Whether, for all sequences, a window by rank is the same as one by position."""
        return bool(self._positions_follow().all())

    def steps(self, spec: AttentionSpec) -> Steps:
        """Plans all rows for one spec."""
        steps, blind = list[Step](), list[Integers]()
        for sequences, by_slots, kind in self._sorted(spec):
            table = self._table(sequences, by_slots=by_slots)
            if kind == "decode":
                kernel = self._kernels.decode(table.page_size, spec)
                kernel.plan_decode(table)
            elif kind == "causal":
                kernel = self._kernels.causal(table.page_size, spec)
                kernel.plan_prefill(table, causal=True)
            else:
                masks = self._masks(table, spec)
                blind.append(masks.blind)
                kernel = self._kernels.masked(table.page_size, spec)
                kernel.plan_prefill(table, causal=False, masks=masks)
            steps.append(Step(kernel, self._rows(table.rows), by_slots))
        return Steps(tuple(steps), self._to_device(np.concatenate(blind)) if any(map(len, blind)) else None)

    def _sorted(self, spec: AttentionSpec) -> Iterator[tuple[Integers, bool, str]]:
        """Groups of sequences that share a kernel, whether they need slot lists, and the kernel's name."""
        num_rows = self._ragged.num_rows
        masked = self._masked if spec.window is None else self._masked | ~self._positions_follow()
        kinds = {"decode": ~masked & (num_rows == 1), "causal": ~masked & (num_rows > 1), "masked": masked}
        for kind, chosen in kinds.items():
            for by_slots, listed in ((False, self._listed), (True, ~self._listed)):
                sequences = np.flatnonzero(chosen & listed & (num_rows > 0))
                if len(sequences):
                    yield sequences, by_slots, kind

    def _positions_follow(self) -> Booleans:
        if self._follow is None:
            positions, page_size = self._cache.positions, self._cache.shape.page_size
            self._follow = page_tables.positions_follow_ranks(self._batch, self._ragged, positions, page_size)
        return self._follow

    def _table(self, sequences: Integers, *, by_slots: bool) -> PageTable:
        if by_slots:
            return page_tables.slot_table(self._batch, self._ragged, sequences, self._cache.shape)
        return page_tables.page_table(self._batch, self._ragged, sequences, self._cache.shape.page_size)

    def _masks(self, table: PageTable, spec: AttentionSpec) -> Masks:
        if spec.window is None:
            return page_tables.explicit_masks(self._batch, table, self._ragged)
        positions, page_size = self._cache.positions, self._cache.shape.page_size
        return page_tables.windowed_masks(self._batch, table, self._ragged, positions, spec.window, page_size)

    def _rows(self, rows: Integers) -> slice | Tensor:
        if (np.diff(rows) == 1).all():
            return slice(int(rows[0]), int(rows[-1]) + 1)
        return self._to_device(rows)

    def _to_device(self, numbers: Integers) -> Tensor:
        return upload(torch.from_numpy(numbers), self._cache.device)


def _fill_pages(batch: Forward) -> Booleans:
    """The sequences that page lists can describe: those that are dense, with a last page that is not empty."""
    last = np.maximum(batch.kv_indptr[1:], 1) - 1
    ends = batch.kv_ends[last] if len(batch.kv_ends) else np.zeros(len(last), np.int32)
    filled: Booleans = batch.dense & (ends > 0)
    return filled


def _have_masks(batch: Forward) -> Booleans:
    if batch.mask_indptr is None:
        return np.zeros(len(batch.dense), np.bool_)
    have: Booleans = np.diff(batch.mask_indptr) > 0
    return have


@contextmanager
def _noted(cache: KvCache, batch: Forward) -> Iterator[None]:
    """Records the positions of the batch in the cache within the block, and restores the old ones after it."""
    before = cache.positions[batch.q_slots]
    cache.positions[batch.q_slots] = batch.q_positions
    yield
    cache.positions[batch.q_slots] = before
