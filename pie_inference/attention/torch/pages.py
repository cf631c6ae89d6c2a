"""Attention with plain torch operations: the reference for other backends, and the backend where no other can run.

It is two batched products over pages gathered head by head (`KvCache.gather`). On CPUs this was measured to be 1.3 to
2.5 times as fast as `scaled_dot_product_attention` over the same pages; the `enable_gqa` of that is ten times slower
yet. Scores are in float32: in bfloat16 large ones would be wrong by more than 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...device.tensors import upload, widened
from ...kv_cache.pages import KvCache, Slots
from ...protocol import Forward
from .. import layout
from ..interface import AttentionSpec
from ..ragged import Booleans, Integers, Ragged, check


@dataclass(frozen=True)
class _Tile:
    rows: slice | Tensor
    num_queries: int
    keys: slice  # among the keys of the segment
    bias: Tensor | None  # [S, 1, Q, L], 0 or minus infinity; None: all keys are visible
    blind: Tensor | None  # bool [S * Q, 1, 1], queries that see no key


@dataclass(frozen=True)
class _Segment:
    pieces: Tensor
    absent: tuple[Tensor, Tensor]  # slots without a key, by sequence and slot
    num_sequences: int
    num_keys: int
    tiles: tuple[_Tile, ...]


Segments = tuple[_Segment, ...]


class TorchAttention:
    """Implements `AttentionBackend` on any torch device."""

    def __init__(self, cache: KvCache, num_heads: int, specs: Sequence[AttentionSpec]) -> None:
        self._cache = cache
        self._num_heads = num_heads
        self._specs = tuple(specs)

    def plan(self, batch: Forward) -> TorchAttentionPlan:
        cache = self._cache
        ragged = check(batch, cache.shape.page_size, cache.num_pages)
        slots = cache.place(batch.q_slots, batch.q_positions)
        highest = int(batch.q_positions.max(initial=0))
        windows = [spec.window if spec.window and spec.window <= highest else None for spec in self._specs]
        cuts = {window: self._cut(batch, ragged, window) for window in dict.fromkeys(windows)}
        layers = [_Layer(spec, cuts[window]) for spec, window in zip(self._specs, windows, strict=True)]
        return TorchAttentionPlan(cache, self._num_heads, slots, layers)

    def _cut(self, batch: Forward, ragged: Ragged, size: int | None) -> Segments:
        page_size = self._cache.shape.page_size
        window = None if size is None else layout.Window(size, self._cache.positions.reshape(-1, page_size))
        return tuple(self._load(segment) for segment in layout.cut(batch, ragged, page_size, window))

    def _load(self, segment: layout.Segment) -> _Segment:
        pieces = self._cache.piece_index(segment.pages)
        sequences, pages = segment.pages.shape
        tiles = tuple(self._load_tile(tile) for tile in segment.tiles)
        absent = self._to_device(segment.absent[0]), self._to_device(segment.absent[1])
        return _Segment(pieces, absent, sequences, pages * self._cache.shape.page_size, tiles)

    def _load_tile(self, tile: layout.Tile) -> _Tile:
        _, queries, keys = tile.visible.shape
        seeing = tile.visible.any(-1, keepdims=True) if tile.may_be_blind else None
        hidden = ~tile.visible if seeing is None else ~tile.visible & seeing
        first = tile.first_page * self._cache.shape.page_size
        blind = None if seeing is None or seeing.all() else self._to_device(~seeing.reshape(-1, 1, 1))
        return _Tile(self._rows(tile.rows), queries, slice(first, first + keys), self._bias(hidden), blind)

    def _rows(self, rows: Integers) -> slice | Tensor:
        if (np.diff(rows) == 1).all():
            return slice(int(rows[0]), int(rows[-1]) + 1)
        return self._to_device(rows)

    def _bias(self, hidden: Booleans) -> Tensor | None:
        if not hidden.any():
            return None
        mask = self._to_device(hidden).unsqueeze(1)
        return torch.zeros(mask.shape, dtype=self._cache.shape.dtype, device=mask.device).masked_fill_(mask, -torch.inf)

    def _to_device(self, array: Integers | Booleans) -> Tensor:
        return upload(torch.from_numpy(array), self._cache.device)


@dataclass(frozen=True)
class _Layer:
    spec: AttentionSpec
    segments: Segments  # layers with the same window share them


class TorchAttentionPlan:
    """Implements `AttentionPlan`."""

    def __init__(self, cache: KvCache, num_heads: int, slots: Slots, layers: Sequence[_Layer]) -> None:
        self._cache = cache
        self._num_heads = num_heads
        self._slots = slots
        self._layers = layers

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        return self._run(layer, query, key_value, None)

    def attend_with_sinks(self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor) -> Tensor:
        return self._run(layer, query, key_value, sinks)

    def _run(self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None) -> Tensor:
        self._cache.write(layer, self._slots, key_value)
        spec = self._layers[layer].spec
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for segment in self._layers[layer].segments:
            keys, values = self._gather(layer, segment)
            for tile in segment.tiles:
                seen = keys[:, tile.keys], values[:, tile.keys]
                output[tile.rows] = self._attend_tile(tile, spec, query, *seen, sinks)
        return output.view(len(output), -1)

    def _gather(self, layer: int, segment: _Segment) -> Tensor:
        """Keys, then values, [2, S * kv_heads, keys, head_dim]; zeros for absent slots, for a weight of zero does not
        hide NaN."""
        found = self._cache.gather(layer, segment.pieces)
        heads, keys = self._cache.shape.num_kv_heads, segment.num_keys
        if len(segment.absent[0]):
            by_slot = found.view(2, segment.num_sequences, heads, keys, -1).permute(1, 3, 0, 2, 4)
            by_slot[segment.absent] = 0
        return found.view(2, segment.num_sequences * heads, keys, -1)

    def _attend_tile(
        self, tile: _Tile, spec: AttentionSpec, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """Attention of S * Q queries; keys and values [S * kv_heads, keys, head_dim]."""
        groups, queries, dim = len(keys), tile.num_queries, keys.shape[-1]
        heads = self._cache.shape.num_kv_heads
        # [S, Q, kv_heads, G, D] to [S * kv_heads, G * Q, D]: the heads that share keys become rows of one product.
        shape = (groups // heads, queries, heads, self._num_heads // heads, dim)
        rows = query[tile.rows].view(shape).permute(0, 2, 3, 1, 4).reshape(groups, -1, dim)
        scores = torch.bmm(widened(rows) * spec.scale, widened(keys).transpose(1, 2))
        if spec.soft_cap is not None:
            scores.div_(spec.soft_cap).tanh_().mul_(spec.soft_cap)
        if tile.bias is not None:
            scores.view(shape[0], self._num_heads, queries, -1).add_(tile.bias)
        weights = scores.softmax(-1) if sinks is None else self._beside_sinks(scores, sinks, queries)
        mixed = torch.bmm(weights.to(values.dtype), values)
        result = (
            mixed.view(shape[0], heads, shape[3], queries, dim).permute(0, 3, 1, 2, 4).reshape(-1, self._num_heads, dim)
        )
        return result if tile.blind is None else result.masked_fill_(tile.blind, 0.0)

    def _beside_sinks(self, scores: Tensor, sinks: Tensor, queries: int) -> Tensor:
        """Weights of scores [S * kv_heads, G * Q, keys], where each head has a sink as well."""
        of_rows = sinks.to(scores.dtype).view(self._cache.shape.num_kv_heads, -1, 1).expand(-1, -1, queries)
        of_rows = of_rows.reshape(1, self._cache.shape.num_kv_heads, -1, 1)
        of_rows = of_rows.expand(len(scores) // of_rows.shape[1], -1, -1, -1).reshape(len(scores), -1, 1)
        return torch.cat((scores, of_rows), -1).softmax(-1)[..., :-1]
