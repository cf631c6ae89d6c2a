"""FlashInfer's wrappers, one for each kind of work, and the arrays that they plan with.

A wrapper plans once per batch and then runs for each layer. `plan` reads host arrays, writes a schedule into a pinned
buffer of the wrapper, and enqueues its copy to the device. Two things follow:

- Its arrays must be int32 in pinned memory. Arrays on the device would have to be read back; copies from pageable
  memory would wait.
- The copy must have run before the wrapper plans again, or the schedule would change during the copy. The plans of a
  wave are the first work of its forward, and at most two waves are in flight (`serving.loop.WAVES_IN_FLIGHT`). So a
  `Kernel` waits for its last copy before it plans, and this wait is short.

The backend is always named: a wrapper would resolve "auto" only once, by its first batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...device.flashinfer_library import FlashInfer, ModuleKey, decodes_with_tensor_cores
from ...device.markers import mark_stream
from ...kv_cache.pages import KvShape
from ...protocol import Array
from ..interface import AttentionSpec
from ..page_tables import Int32, Masks, PageTable

BLOCKS_OF_PROCESSOR = 2
"""Parts that FlashInfer makes of a batch whose sequences are split, for each processor of the GPU."""
SPARE_BYTES = 1 << 20

SCHEDULE_BYTES = 2 << 20
"""Memory for the schedule of a recorded kernel. Wrappers take 8 MiB by default, on the device and on the host; but
there are many recorded kernels, and a decode batch needs only a few numbers for each block of the GPU."""

LAYOUT = "HND"

Views = tuple[Tensor, Tensor]
"""Keys and values of one layer."""


@dataclass(frozen=True)
class Shape:
    """Sizes and formats that all kernels of a backend share."""

    cache: KvShape
    num_heads: int
    device: torch.device

    @property
    def group(self) -> int:
        """Query heads for each key-value head."""
        return self.num_heads // self.cache.num_kv_heads


def workspace_bytes(shape: Shape, processors: int, most_rows: int) -> int:
    """Memory for partial results of long sequences that are split over the GPU, as much as FlashInfer's planner takes
    at most; it refuses to plan with less. All wrappers share it, because they run one after another. `most_rows`: those
    of the largest graph, whose batches are always split."""
    heads, dim, group = shape.num_heads, shape.cache.head_dim, shape.group
    parts = BLOCKS_OF_PROCESSOR * processors // shape.cache.num_kv_heads
    rows = parts * _tile_rows(most_rows * group, dim)
    if decodes_with_tensor_cores(group):
        tile = _tile_rows(group, dim)
        rows = max(rows, tile * max(parts, -(-most_rows * group // tile) + most_rows - 1))
    return heads * rows * (dim + 1) * torch.float32.itemsize + SPARE_BYTES


def _tile_rows(rows: int, dim: int) -> int:
    """Rows of a tile, where a sequence has so many queries times heads that share its keys."""
    if rows > 64 and dim < 256:
        return 128
    return 64 if rows > 16 else 16


def host_array(array: Array, device: torch.device) -> Tensor:
    """An array as an int32 tensor in pinned memory, for `plan` and for copies that do not wait."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory() if device.type == "cuda" else tensor


class Kernel:
    """One wrapper with one `AttentionSpec`. Call `plan_*` before `run`; `run` runs the last plan."""

    def __init__(self, wrapper: Any, shape: Shape, spec: AttentionSpec) -> None:
        self.wrapper = wrapper
        self._shape = shape
        self._options: dict[str, Any] = {
            "sm_scale": spec.scale,
            "window_left": -1 if spec.window is None else spec.window - 1,  # inclusive, and the query's own key counts
            "logits_soft_cap": spec.soft_cap,
            "q_data_type": shape.cache.dtype,
            "kv_data_type": shape.cache.dtype,
            "non_blocking": True,
        }
        self._copied: torch.cuda.Event | None = None

    def plan_decode(self, table: PageTable, indices: Tensor | None = None) -> None:
        """Plans one query for each sequence. `indices` may already be on the device."""
        arrays = self._arrays(table.indptr, table.indices if indices is None else None, table.last_page_len)
        indptr, host_indices, last_page_len = arrays
        seq_lens = host_array(table.num_keys, self._shape.device)
        where = host_indices if indices is None else indices
        self._plan(indptr, where, last_page_len, *self._sizes(table.page_size), seq_lens=seq_lens)

    def plan_prefill(self, table: PageTable, *, causal: bool, masks: Masks | None = None) -> None:
        """Plans any number of queries for each sequence."""
        arrays = self._arrays(table.q_indptr, table.indptr, table.indices, table.last_page_len)
        more: dict[str, Any] = {
            "causal": causal,
            "seq_lens": host_array(table.num_keys, self._shape.device),
            "max_token_per_sequence": int(np.diff(table.q_indptr).max()),
        }
        if masks is not None:
            more["packed_custom_mask"] = host_array(masks.bits, self._shape.device)
        self._plan(*arrays, *self._sizes(table.page_size), **more)
        if masks is not None:
            # `plan` counts bits, the kernel counts bytes: in both versions this is right for the first sequence only.
            begins = host_array(masks.indptr, self._shape.device)
            self.wrapper._mask_indptr_buf = begins.to(self._shape.device, non_blocking=True)

    def run(self, query: Tensor, views: Views, out: Tensor) -> None:
        """Runs the plan. query: [rows, num_heads, head_dim], with any strides except in the last dimension; `out` has
        the same shape and is contiguous."""
        self.wrapper.run(query, views, out=out)

    def _arrays(self, *arrays: Int32 | None) -> list[Tensor | None]:
        return [None if array is None else host_array(array, self._shape.device) for array in arrays]

    def _sizes(self, page_size: int) -> tuple[int, int, int, int]:
        cache = self._shape.cache
        return self._shape.num_heads, cache.num_kv_heads, cache.head_dim, page_size

    def _plan(self, *args: Any, **more: Any) -> None:
        if self._copied is not None:
            self._copied.synchronize()
        self.wrapper.plan(*args, **more, **self._options)
        self._copied = mark_stream(self._shape.device)


@dataclass(frozen=True)
class GraphBuffers:
    """The arrays that a recorded decode kernel reads, int32 on the device."""

    indptr: Tensor  # [size + 1]
    indices: Tensor  # [the most that a batch may have]
    last_page_len: Tensor  # [size]


class Kernels:
    """Makes each wrapper when it is first needed, and keeps it."""

    def __init__(self, library: FlashInfer, shape: Shape, workspace_bytes: int) -> None:
        self.library = library
        self.shape = shape
        self._workspace = torch.zeros(workspace_bytes, dtype=torch.uint8, device=shape.device)  # decode needs zeros
        self._kernels: dict[tuple[str, int, AttentionSpec], Kernel] = {}

    def decode(self, page_size: int, spec: AttentionSpec) -> Kernel:
        """The kernel for one query of each sequence."""
        return self._kernel("decode", page_size, spec)

    def causal(self, page_size: int, spec: AttentionSpec) -> Kernel:
        """The kernel for several queries of each sequence."""
        return self._kernel("causal", page_size, spec)

    def masked(self, page_size: int, spec: AttentionSpec) -> Kernel:
        """The kernel for explicit masks, which include the window."""
        return self._kernel("masked", page_size, spec)

    def recordable_decode(self, spec: AttentionSpec, buffers: GraphBuffers) -> Kernel:
        """A new decode kernel for CUDA graphs."""
        wrapper = self.library.decode_wrapper(
            self._workspace,
            LAYOUT,
            use_cuda_graph=True,
            use_tensor_cores=decodes_with_tensor_cores(self.shape.group),
            paged_kv_indptr_buffer=buffers.indptr,
            paged_kv_indices_buffer=buffers.indices,
            paged_kv_last_page_len_buffer=buffers.last_page_len,
            backend="fa2",
        )
        schedule = torch.empty(SCHEDULE_BYTES, dtype=torch.uint8, device=self.shape.device)
        wrapper.reset_workspace_buffer(self._workspace, schedule)
        return Kernel(wrapper, self.shape, spec)

    def _kernel(self, kind: str, page_size: int, spec: AttentionSpec) -> Kernel:
        key = (kind, page_size, spec)
        if key not in self._kernels:
            own = replace(spec, window=None) if kind == "masked" else spec
            self._kernels[key] = Kernel(self._make(kind, own), self.shape, own)
        return self._kernels[key]

    def _make(self, kind: str, spec: AttentionSpec) -> Any:
        if kind == "decode":
            tensor_cores = decodes_with_tensor_cores(self.shape.group)
            return self.library.decode_wrapper(self._workspace, LAYOUT, use_tensor_cores=tensor_cores, backend="fa2")
        backend = "fa2" if kind == "masked" else self._causal_backend(spec)
        return self.library.prefill_wrapper(self._workspace, LAYOUT, backend=backend)

    def _causal_backend(self, spec: AttentionSpec) -> str:
        cache = self.shape.cache
        key = ModuleKey(cache.dtype, cache.head_dim, spec.window is not None, spec.soft_cap is not None)
        return self.library.causal_backend(key)
