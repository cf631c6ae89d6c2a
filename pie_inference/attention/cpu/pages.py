"""Attention on CPUs with the kernels in `cpu_kernels/attention*`, which read the pages directly.

Planning takes short calls, so it is cheap even for a batch of many short sequences: one call lists where the keys of
the batch are, and one call for each distinct window cuts the work into tiles. Then each layer is one call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...cpu_kernels.library import ADDRESS, FLOAT, INTEGER, SUFFIX, Kernel, Library
from ...kv_cache.pages import KvCache, KvShape
from ...protocol import Array, Forward
from ..interface import AttentionSpec
from ..ragged import check

TILE_ROWS = 256
"""Rows of scores in a tile (queries times the heads that share keys)."""
TASKS_PER_THREAD = 2  # as in attention.h
TILE_WORDS = 10
DIM_UNIT = 16
MOST_ROWS = 1 << 32  # in a layer: the kernel counts them in 32 bits


class _Batch(ctypes.Structure):
    """The struct `Batch` of attention.h."""

    _fields_ = [
        *[(name, INTEGER) for name in ("num_sequences", "num_rows")],
        *[(name, ADDRESS) for name in ("q_indptr", "q_slots", "q_positions")],
        *[(name, ADDRESS) for name in ("kv_indptr", "kv_pages", "kv_begins", "kv_ends")],
        *[(name, ADDRESS) for name in ("mask_indptr", "mask_bits")],
        *[(name, ADDRESS) for name in ("slot_positions", "key_indptr", "key_rows", "key_positions")],
    ]


class _Cache(ctypes.Structure):
    """The struct `Cache` of attention.h."""

    _fields_ = [(name, INTEGER) for name in ("num_heads", "num_kv_heads", "head_dim", "page_size", "number_bytes")]


_TILE_ARRAYS = ("tiles", "shared", "shared_rows")
_TILE_COUNTS = ("count", "num_decodes", "num_shared", "threads", "partials", "window")


class _Tiles(ctypes.Structure):
    """The struct `Tiles` of attention.h."""

    _fields_ = [*[(name, ADDRESS) for name in _TILE_ARRAYS], *[(name, INTEGER) for name in _TILE_COUNTS]]


def why_unsuitable(shape: KvShape, num_pages: int) -> str | None:
    """Why the kernel cannot serve such a cache, as the end of a sentence; None: it can."""
    if shape.dtype not in SUFFIX:
        return f"its kernel does not support {shape.dtype}"
    if shape.head_dim % DIM_UNIT:
        return f"its kernel takes head dimensions that are multiples of {DIM_UNIT}, not {shape.head_dim}"
    if num_pages * 2 * shape.num_kv_heads * shape.page_size >= MOST_ROWS:
        return f"its kernel cannot count the slots of {num_pages} pages"
    return None


class CpuAttention:
    """Implements `AttentionBackend` and `GraphBackend` for caches that `why_unsuitable` accepts. A graph serves all
    batches with as many rows as it has, whosever they are: rows are not filled up."""

    def __init__(self, cache: KvCache, num_heads: int, specs: Sequence[AttentionSpec], library: Library) -> None:
        shape, a = cache.shape, ADDRESS
        self._cache = cache
        self._shape = _Cache(num_heads, shape.num_kv_heads, shape.head_dim, shape.page_size, shape.dtype.itemsize)
        self._layers = [_Layer(cache.layer(n).data_ptr(), spec) for n, spec in enumerate(specs)]
        self._windows = sorted({spec.window for spec in specs if spec.window is not None})
        self._most_queries = max(1, TILE_ROWS * shape.num_kv_heads // num_heads)
        self._list_keys = library.kernel("list_keys", a, a)
        self._list_tiles = library.kernel("list_tiles", a, a, INTEGER, INTEGER, a, INTEGER)
        self._attend = library.kernel(
            f"attend_{SUFFIX[shape.dtype]}", a, a, a, a, a, INTEGER, a, INTEGER, a, FLOAT, FLOAT, a
        )

    def can_replay(self, batch: Forward) -> bool:
        return True

    def graph_plan(self, size: int) -> CpuGraphPlan:
        return CpuGraphPlan(size, self)

    def plan(self, batch: Forward) -> CpuAttentionPlan:
        ragged = check(batch, self._cache.shape.page_size, self._cache.num_pages)
        highest = int(batch.q_positions.max(initial=0))
        windows = [window for window in self._windows if window <= highest]
        keys = self._keys(batch, int(ragged.num_keys.sum()), bool(windows))
        tiles = {window: self._tiles(keys, window) for window in (0, *windows)}
        layers = [(layer, tiles.get(layer.spec.window or 0, tiles[0])) for layer in self._layers]
        return CpuAttentionPlan(self._shape, keys, layers, self._attend)

    def _keys(self, batch: Forward, num_keys: int, with_positions: bool) -> _Keys:
        """Lists the keys of the batch, and records its positions in the cache."""
        indptr = np.empty(len(batch.q_indptr), np.int64)
        rows = np.empty(num_keys, np.uint32)
        positions = np.empty(num_keys, np.int32) if with_positions else None
        q = (batch.q_indptr, batch.q_slots, batch.q_positions)
        kv = (batch.kv_indptr, batch.kv_pages, batch.kv_begins, batch.kv_ends)
        given = [_in_memory(array, np.int32) for array in (*q, *kv)]
        mask = (_in_memory(batch.mask_indptr, np.int64), _in_memory(batch.mask_bits, np.uint8))
        arrays = (*given, *mask, self._cache.positions, indptr, rows, positions)
        structure = _Batch(len(batch.q_indptr) - 1, len(batch.q_slots), *map(_address, arrays))
        self._list_keys(ctypes.byref(structure), ctypes.byref(self._shape))
        return _Keys(structure, arrays)

    def _tiles(self, keys: _Keys, window: int) -> _TileList:
        threads = torch.get_num_threads()
        num_sequences, num_rows = keys.structure.num_sequences, keys.structure.num_rows
        capacity = num_sequences + num_rows // self._most_queries + TASKS_PER_THREAD * threads + 1
        tiles, rows = np.empty((2, capacity, TILE_WORDS), np.int64), np.empty(num_sequences, np.int32)
        structure = _Tiles(tiles[0].ctypes.data, tiles[1].ctypes.data, rows.ctypes.data, window=window)
        self._list_tiles(
            ctypes.byref(keys.structure),
            ctypes.byref(self._shape),
            self._most_queries,
            threads,
            ctypes.byref(structure),
            capacity,
        )
        return _TileList(structure, (tiles, rows))


@dataclass(frozen=True)
class _Layer:
    address: int
    spec: AttentionSpec


@dataclass(frozen=True)
class _Keys:
    """The batch as the kernel reads it, with the arrays that it points to."""

    structure: _Batch
    arrays: Sequence[Array | None]


@dataclass(frozen=True)
class _TileList:
    structure: _Tiles
    arrays: Sequence[Array]


class CpuAttentionPlan:
    """Implements `AttentionPlan`."""

    def __init__(
        self,
        shape: _Cache,
        keys: _Keys,
        layers: Sequence[tuple[_Layer, _TileList]],
        attend: Kernel,
    ) -> None:
        self._shape = shape
        self._keys = keys
        self._layers = layers
        self._attend = attend

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        return self._run(layer, query, key_value, None)

    def attend_with_sinks(self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor) -> Tensor:
        return self._run(layer, query, key_value, sinks.float().contiguous())

    def _run(self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None) -> Tensor:
        own, tiles = self._layers[layer]
        query, key_value = _with_dense_heads(query), _with_dense_heads(key_value)
        output = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
        self._attend(
            ctypes.byref(self._keys.structure),
            ctypes.byref(self._shape),
            ctypes.byref(tiles.structure),
            own.address,
            query.data_ptr(),
            query.stride(0),
            key_value.data_ptr(),
            key_value.stride(0),
            output.data_ptr(),
            own.spec.scale,
            own.spec.soft_cap or 0.0,
            None if sinks is None else sinks.data_ptr(),
        )
        return output


class CpuGraphPlan(CpuAttentionPlan):
    """Implements `GraphPlan`: a plan whose structures stay where they are. They get the contents of others."""

    def __init__(self, size: int, backend: CpuAttention) -> None:
        tiles = {layer.spec.window or 0: _TileList(_Tiles(), ()) for layer in backend._layers}
        layers = [(layer, tiles[layer.spec.window or 0]) for layer in backend._layers]
        super().__init__(backend._shape, _Keys(_Batch(), ()), layers, backend._attend)
        self.size = size
        self._backend = backend
        self._newest: CpuAttentionPlan  # has the arrays to which the structures point

    def update(self, batch: Forward) -> None:
        self._newest = newest = self._backend.plan(batch)
        ctypes.pointer(self._keys.structure)[0] = newest._keys.structure
        for (_, own), (_, new) in zip(self._layers, newest._layers, strict=True):
            ctypes.pointer(own.structure)[0] = new.structure


def _with_dense_heads(vectors: Tensor) -> Tensor:
    """[T, heads, head_dim] with the heads of each row contiguous; copies only if a model did something unusual."""
    _, head_stride, stride = vectors.stride()
    return vectors if head_stride == vectors.shape[2] and stride == 1 else vectors.contiguous()


def _in_memory(array: Array | None, dtype: type[np.generic]) -> Array | None:
    """The array as a kernel can read it: itself, if it has the protocol's type."""
    return None if array is None else np.ascontiguousarray(array, dtype)


def _address(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data
