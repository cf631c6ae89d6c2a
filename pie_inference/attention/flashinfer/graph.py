"""FlashInfer's decode kernels on memory at fixed addresses, for CUDA graphs.

In its graph mode a wrapper launches as many blocks as the largest batch could need. The blocks read their work from the
device, where each `plan` puts it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...protocol import Array, Forward
from .. import page_tables
from ..interface import AttentionSpec
from ..page_tables import PageTable
from .cache_views import CacheViews
from .kernels import GraphBuffers, Kernels, host_array


class FlashInferGraphPlan:
    """Implements `GraphPlan`. A batch may list at most `capacity` pages."""

    def __init__(
        self, size: int, capacity: int, kernels: Kernels, views: CacheViews, specs: Sequence[AttentionSpec]
    ) -> None:
        self.size = size
        self._views = views
        device = views.cache.device
        indptr = torch.zeros(size + 1, dtype=torch.int32, device=device)
        indices = torch.zeros(capacity + size, dtype=torch.int32, device=device)
        self._buffers = GraphBuffers(indptr, indices, torch.zeros(size, dtype=torch.int32, device=device))
        self._places = torch.zeros(size, dtype=torch.int32, device=device)
        kernels_of = {spec: kernels.recordable_decode(spec, self._buffers) for spec in dict.fromkeys(specs)}
        self._distinct = tuple(kernels_of.values())
        self._layers = [kernels_of[spec] for spec in specs]

    def update(self, batch: Forward) -> None:
        cache = self._views.cache
        table = self._table(batch)
        cache.positions[batch.q_slots] = batch.q_positions
        slots = _filled(batch.q_slots, self.size, cache.scratch_slot)
        self._places.copy_(self._views.places(slots))
        indices = self._buffers.indices[: len(table.indices)]
        indices.copy_(host_array(table.indices, cache.device), non_blocking=True)  # `plan` would wait for its copy
        for kernel in self._distinct:
            kernel.plan_decode(table, indices)

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        self._views.write(layer, key_value, self._places)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        self._layers[layer].run(query, self._views.layer(layer, by_slots=False), out)
        return out.view(len(out), -1)

    def _table(self, batch: Forward) -> PageTable:
        """The page table of the batch. Missing sequences get one key, in the scratch page."""
        cache = self._views.cache
        ragged = self._views.check(batch)
        missing = self.size - len(batch.q_slots)
        sequences = np.arange(self.size)
        lengths = _filled(ragged.num_runs.astype(np.int32), self.size, 1)
        return PageTable(
            sequences=sequences,
            rows=sequences,
            q_indptr=np.arange(self.size + 1, dtype=np.int32),
            indptr=page_tables.indptr_of(lengths),
            indices=_filled(batch.kv_pages, len(batch.kv_pages) + missing, cache.num_pages),
            last_page_len=_filled(batch.kv_ends[batch.kv_indptr[1:] - 1], self.size, 1),
            num_keys=_filled(ragged.num_keys.astype(np.int32), self.size, 1),
            page_size=cache.shape.page_size,
        )


def _filled(array: Array, size: int, value: int) -> page_tables.Int32:
    filled = np.full(size, value, np.int32)
    filled[: len(array)] = array
    return filled
