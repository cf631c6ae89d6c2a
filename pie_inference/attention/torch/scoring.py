"""Attention that also says how much of it each key got, exactly and in float32, for few sequences.

Kernels never hold all weights of attention at a time, so a sequence that wants to know them takes this way on every
device, whatever serves the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...device.ranks import Ranks
from ...device.tensors import upload, widened
from ...kv_cache.pages import KvCache, Slots
from ...protocol import Forward
from ..interface import AttentionSpec
from ..page_tables import key_slots
from ..ragged import Booleans, Integers, Ragged, check, mask_of

MOST_WEIGHTS = 1 << 24
"""Weights of one product: heads, queries and keys multiplied."""


@dataclass(frozen=True)
class _Sequence:
    rows: slice
    keys: Slots
    visible: Mapping[int | None, Tensor]  # bool [queries, keys], by window
    mass: Tensor  # float32 [keys], over the layers so far


class ScoringAttention:
    """Implements `AttentionBackend` for one batch at a time; `scores` is about the last one."""

    def __init__(self, cache: KvCache, num_heads: int, specs: Sequence[AttentionSpec], ranks: Ranks) -> None:
        """`num_heads`: of this rank."""
        self._cache = cache
        self._num_heads = num_heads
        self._specs = tuple(specs)
        self._ranks = ranks
        self._sequences: list[_Sequence] = []
        self._plan: ScoringPlan | None = None

    def plan(self, batch: Forward) -> ScoringPlan:
        cache = self._cache
        ragged = check(batch, cache.shape.page_size, cache.num_pages)
        slots = cache.place(batch.q_slots, batch.q_positions)
        self._sequences = [self._sequence(batch, ragged, n) for n in range(batch.count())]
        self._plan = ScoringPlan(cache, self._num_heads, self._specs, slots, self._sequences)
        return self._plan

    def scores(self) -> Tensor:
        """For each key of each sequence, one behind the other, the weight that the queries of the sequence give to it
        together, as the mean over all heads and layers: float32. The numbers of a sequence add up to the number of its
        queries that see a key, but for what sinks take."""
        mass = torch.cat([torch.zeros(0, device=self._cache.device), *(one.mass for one in self._sequences)])
        calls = 1 if self._plan is None else max(1, self._plan.calls)
        return self._ranks.all_reduce(mass) / (self._num_heads * self._ranks.size * calls)

    def _sequence(self, batch: Forward, ragged: Ragged, n: int) -> _Sequence:
        rows = slice(int(batch.q_indptr[n]), int(batch.q_indptr[n + 1]))
        numbers = key_slots(batch, n, self._cache.shape.page_size)
        queries, keys = rows.stop - rows.start, len(numbers)
        explicit = mask_of(batch, ragged, n)
        seen = np.tri(queries, keys, keys - queries, dtype=np.bool_) if explicit is None else explicit
        windows = dict.fromkeys(spec.window for spec in self._specs)
        visible = {window: self._upload(self._within(batch, rows, numbers, seen, window)) for window in windows}
        mass = torch.zeros(keys, dtype=torch.float32, device=self._cache.device)
        return _Sequence(rows, self._cache.locate(numbers.astype(np.int32)), visible, mass)

    def _within(self, batch: Forward, rows: slice, keys: Integers, seen: Booleans, window: int | None) -> Booleans:
        if window is None:
            return seen
        oldest = batch.q_positions[rows].astype(np.int64)[:, None] - window
        within: Booleans = seen & (self._cache.positions[keys][None, :] > oldest)
        return within

    def _upload(self, visible: Booleans) -> Tensor:
        return upload(torch.from_numpy(visible), self._cache.device)


class ScoringPlan:
    """Implements `AttentionPlan`, and adds the weights to the mass of each sequence's keys."""

    def __init__(
        self,
        cache: KvCache,
        num_heads: int,
        specs: Sequence[AttentionSpec],
        slots: Slots,
        sequences: Sequence[_Sequence],
    ) -> None:
        self._cache = cache
        self._num_heads = num_heads
        self._specs = specs
        self._slots = slots
        self._sequences = sequences
        self.calls = 0  # several of a model may be over the same layer of the cache

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        return self._run(layer, query, key_value, None)

    def attend_with_sinks(self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor) -> Tensor:
        return self._run(layer, query, key_value, sinks)

    def _run(self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None) -> Tensor:
        self.calls += 1
        self._cache.write(layer, self._slots, key_value)
        spec, output = self._specs[layer], torch.empty_like(query, memory_format=torch.contiguous_format)
        for sequence in self._sequences:
            keys, values = widened(self._cache.read(layer, sequence.keys)).chunk(2, 1)  # [K, kv_heads, D]
            at_once = max(1, MOST_WEIGHTS // max(1, len(keys) * self._num_heads))
            for first in range(sequence.rows.start, sequence.rows.stop, at_once):
                rows = slice(first, min(first + at_once, sequence.rows.stop))
                own = slice(rows.start - sequence.rows.start, rows.stop - sequence.rows.start)
                weights = self._weights(spec, widened(query[rows]), keys, sequence.visible[spec.window][own], sinks)
                sequence.mass.add_(weights.sum((0, 1, 2)))
                output[rows] = torch.einsum("hgql,lhd->qhgd", weights, values).flatten(1, 2).to(output.dtype)
        return output.view(len(output), -1)

    def _weights(
        self, spec: AttentionSpec, query: Tensor, keys: Tensor, visible: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """[kv_heads, heads of each, queries, keys]; zeros for a query that sees no key."""
        grouped = query.view(len(query), keys.shape[1], -1, query.shape[-1])
        scores = torch.einsum("qhgd,lhd->hgql", grouped, keys) * spec.scale
        if spec.soft_cap is not None:
            scores = (scores / spec.soft_cap).tanh_().mul_(spec.soft_cap)
        scores = scores.masked_fill_(~visible, -torch.inf)
        if sinks is None:
            weights = scores.softmax(-1)
        else:
            of_rows = sinks.to(scores.dtype).view(*scores.shape[:2], 1, 1).expand(-1, -1, scores.shape[2], -1)
            weights = torch.cat((scores, of_rows), -1).softmax(-1)[..., :-1]
        return weights.masked_fill_(~visible.any(-1, keepdim=True), 0.0)
