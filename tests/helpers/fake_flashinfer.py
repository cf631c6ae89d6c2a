"""FlashInfer's API in torch, as far as we use it: what its documentation and kernels say, on any device.

It is as strict as the original about shapes, types and ranges, and keeps its oddities: queries that see nothing get a
mean of values (up to 0.6.18), masks given as packed bits are found by element, not byte, unless one corrects that, in
graph mode the batch size is frozen and kernels read the caller's buffers. It also takes float32, for sharper tests.
`calls` records how it was called, to be compared with the signatures of the original.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pie_inference.device.flashinfer_library import DECODE_GROUPS, FlashInfer, ModuleKey

HIDDEN = -5e4
"""The score of what a mask hides, in units of the exponent to base 2."""


@dataclass(frozen=True)
class Call:
    """How a function was called."""

    function: str
    positional: int
    keywords: tuple[str, ...]


calls: set[Call] = set()


def recorded(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Notes calls of a function; `name` has no argument `self`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        method = "." in name

        @functools.wraps(function)
        def noting(*args: Any, **more: Any) -> Any:
            calls.add(Call(name, len(args) - method, tuple(sorted(more))))
            return function(*args, **more)

        return noting

    return decorate


def _host_int32(tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    assert tensor.device.type == "cpu", "plan() would have to read it back from the device"
    assert tensor.dtype == torch.int32
    assert tuple(tensor.shape) == shape, (tensor.shape, shape)
    return np.asarray(tensor.numpy())


class _Wrapper:
    """What both have in common. `self._table` is set by plan()."""

    def _init(self, workspace: Tensor, layout: str, use_cuda_graph: bool, backend: str) -> None:
        assert not workspace.any(), "decode needs zeros"
        assert backend in ("fa2", "fa3"), "named, not auto"
        assert layout in ("HND", "NHD")
        self.device, self._layout, self._use_cuda_graph, self._backend = (
            workspace.device,
            layout,
            use_cuda_graph,
            backend,
        )
        self._planned = False

    def _load(self, q_indptr: Tensor, indptr: Tensor, indices: Tensor, last: Tensor, seq_lens: Tensor | None) -> None:
        """Checks the table; keeps it on the device, in the caller's buffers in graph mode."""
        size = len(last)
        begins, ends = _host_int32(indptr, (size + 1,))[:-1], _host_int32(indptr, (size + 1,))[1:]
        lengths = _host_int32(last, (size,))
        assert begins[0] == 0
        assert (ends > begins).all(), "a sequence without pages"
        assert ends[-1] == len(indices)
        assert indices.dtype == torch.int32
        assert ((lengths >= 1) & (lengths <= self._page_size)).all()
        self._q_indptr = _host_int32(q_indptr, (size + 1,)).copy()
        if seq_lens is not None:
            expected = (ends - begins - 1) * self._page_size + lengths
            np.testing.assert_array_equal(_host_int32(seq_lens, (size,)), expected)
        if not self._use_cuda_graph:
            self._buffers = [each.clone().to(self.device) for each in (indptr, indices, last)]
            return
        assert len(self._buffers[2]) == size, "the batch size is frozen"
        for buffer, each in zip(self._buffers, (indptr, indices, last), strict=True):
            assert len(each) <= len(buffer)
            buffer[: len(each)].copy_(each)

    def _set_plan(
        self,
        heads: int,
        kv_heads: int,
        dim: int,
        page_size: int,
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float | None,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        assert heads % kv_heads == 0
        assert q_data_type == kv_data_type
        self._heads, self._kv_heads, self._dim, self._page_size = heads, kv_heads, dim, page_size
        self._scale, self._window, self._cap, self._dtype = sm_scale, window_left, logits_soft_cap or 0.0, q_data_type
        self._planned = True

    def _check(self, q: Tensor, cache: tuple[Tensor, Tensor], out: Tensor | None) -> None:
        assert self._planned
        assert q.dtype == cache[0].dtype == cache[1].dtype == self._dtype
        assert q.shape[1:] == (self._heads, self._dim)
        assert q.stride(-1) == 1
        assert cache[0].stride() == cache[1].stride(), "K and V of different strides are another module"
        expected = (self._kv_heads, self._page_size) if self._layout == "HND" else (self._page_size, self._kv_heads)
        assert cache[0].shape[1:] == cache[1].shape[1:] == (*expected, self._dim)
        assert out is None or (out.shape == q.shape and out.dtype == q.dtype and out.is_contiguous())

    def _keys(self, number: int, cache: Tensor) -> Tensor:
        """[keys, kv_heads, dim] of one sequence, as the buffers on the device say."""
        indptr, indices, last = self._buffers
        pages = indices[int(indptr[number]) : int(indptr[number + 1])].long()
        assert int(pages.min()) >= 0
        assert int(pages.max()) < len(cache)
        found = cache[pages]  # [P, ...]
        slots = found.transpose(1, 2) if self._layout == "HND" else found
        flat = slots.reshape(-1, self._kv_heads, self._dim)
        return flat[: (len(pages) - 1) * self._page_size + int(last[number])]

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """hidden: bool [queries, keys]. Returns the result and the base-2 logarithms of the sums."""
        group = self._heads // self._kv_heads
        wide = torch.float64 if q.dtype == torch.float32 else torch.float32
        keys, values = (side.to(wide).repeat_interleave(group, 1) for side in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", q.to(wide), keys) * self._scale
        if self._cap > 0:
            scores = self._cap * torch.tanh(scores / self._cap)
        scores = (scores * 1.4426950408889634).masked_fill_(hidden, HIDDEN)
        lse = torch.logsumexp(scores * 0.6931471805599453, -1) * 1.4426950408889634
        weights = torch.exp2(scores - lse[..., None])
        return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype), lse.t().float()

    def _run(
        self, q: Tensor, cache: tuple[Tensor, Tensor], out: Tensor | None, hidden: Callable[[int, int, int], Tensor]
    ) -> tuple[Tensor, Tensor]:
        self._check(q, cache, out)
        assert len(q) == self._q_indptr[-1]
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        lse = torch.empty(len(q), self._heads, device=q.device)
        for number in range(len(self._q_indptr) - 1):
            rows = slice(self._q_indptr[number], self._q_indptr[number + 1])
            keys, values = (self._keys(number, side) for side in cache)
            hides = hidden(number, rows.stop - rows.start, len(keys))
            out[rows], lse[rows] = self._attend(q[rows], keys, values, hides)
        return out, lse

    def _outside_window(self, queries: int, keys: int) -> Tensor:
        """By rank, from the end."""
        if self._window < 0:
            return torch.zeros(queries, keys, dtype=torch.bool)
        own = torch.arange(queries)[:, None] + keys - queries
        return torch.arange(keys) + self._window < own


class FakeDecodeWrapper(_Wrapper):
    """BatchDecodeWithPagedKVCacheWrapper."""

    @recorded("decode_wrapper.__init__")
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        self._init(float_workspace_buffer, kv_layout, use_cuda_graph, backend)
        self._use_tensor_cores = use_tensor_cores
        if use_cuda_graph:
            buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
            self._buffers = [each for each in buffers if each is not None]
            assert all(each.dtype == torch.int32 for each in self._buffers)
            assert len(self._buffers[0]) == len(self._buffers[2]) + 1

    @recorded("decode_wrapper.reset_workspace_buffer")
    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor) -> None:
        assert float_workspace_buffer.device == int_workspace_buffer.device
        assert int_workspace_buffer.dtype == torch.uint8

    @recorded("decode_wrapper.plan")
    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        seq_lens: Tensor | None = None,
        non_blocking: bool = True,
        **options: Any,
    ) -> None:
        assert non_blocking
        assert self._use_tensor_cores or num_qo_heads // num_kv_heads in DECODE_GROUPS, "Unsupported group_size"
        self._set_plan(num_qo_heads, num_kv_heads, head_dim, page_size, **options)
        q_indptr = torch.arange(len(last_page_len) + 1, dtype=torch.int32)
        self._load(q_indptr, indptr, indices, last_page_len, seq_lens)

    @recorded("decode_wrapper.run")
    def run(
        self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor | None = None, return_lse: bool = False
    ) -> Any:
        result, lse = self._run(q, paged_kv_cache, out, lambda _, queries, keys: self._outside_window(queries, keys))
        return (result, lse) if return_lse else result


class FakePrefillWrapper(_Wrapper):
    """BatchPrefillWithPagedKVCacheWrapper."""

    @recorded("prefill_wrapper.__init__")
    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", *, backend: str = "auto") -> None:
        self._init(float_workspace_buffer, kv_layout, False, backend)

    @recorded("prefill_wrapper.plan")
    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        seq_lens: Tensor | None = None,
        max_token_per_sequence: int | None = None,
        non_blocking: bool = True,
        **options: Any,
    ) -> None:
        assert non_blocking
        self._set_plan(num_qo_heads, num_kv_heads, head_dim_qk, page_size, **options)
        self._load(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, seq_lens)
        lengths = np.diff(self._q_indptr)
        assert max_token_per_sequence is None or max_token_per_sequence == lengths.max()
        self._causal, self._mask = causal, packed_custom_mask
        if packed_custom_mask is not None:
            assert self._backend == "fa2", "cudaErrorNotSupported"
            assert packed_custom_mask.dtype == torch.uint8
            keys = np.diff(paged_kv_indptr.numpy()) * page_size - page_size + paged_kv_last_page_len.numpy()
            elements = np.concatenate(([0], np.cumsum(lengths * keys))).astype(np.int32)
            self._mask_indptr_buf = torch.from_numpy(elements)  # of bits, where the kernel reads bytes

    @recorded("prefill_wrapper.run")
    def run(
        self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor | None = None, return_lse: bool = False
    ) -> Any:
        result, lse = self._run(q, paged_kv_cache, out, self._hidden)
        return (result, lse) if return_lse else result

    def _hidden(self, number: int, queries: int, keys: int) -> Tensor:
        hidden = self._outside_window(queries, keys)
        if self._mask is not None:
            begin = int(self._mask_indptr_buf[number])
            own = self._mask.numpy()[begin : begin + -(-queries * keys // 8)]
            bits = np.unpackbits(own, count=queries * keys, bitorder="little")
            return hidden | torch.from_numpy(bits.reshape(queries, keys) == 0)
        if self._causal:
            hidden = hidden | ~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        return hidden


@recorded("append")
def append_paged_kv_cache(
    append_key: Tensor,
    append_value: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    paged_kv_cache: tuple[Tensor, Tensor],
    kv_indices: Tensor,
    kv_indptr: Tensor,
    kv_last_page_len: Tensor,
    kv_layout: str = "NHD",
) -> None:
    """`positions` are places within the sequences."""
    for each in (batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len):
        assert each.dtype == torch.int32
        assert each.dim() == 1
        assert each.is_contiguous()
    assert len(batch_indices) == len(positions) == len(append_key) == len(append_value)
    assert len(kv_indptr) == len(kv_last_page_len) + 1
    for new, cache in zip((append_key, append_value), paged_kv_cache, strict=True):
        slots = cache.transpose(1, 2) if kv_layout == "HND" else cache
        page_size = slots.shape[1]
        pages = kv_indices[(kv_indptr[batch_indices.long()] + positions // page_size).long()].long()
        slots[pages, (positions % page_size).long()] = new


def fake_flashinfer(causal_backend: Callable[[ModuleKey], str] = lambda _: "fa2") -> FlashInfer:
    return FlashInfer(
        version="fake",
        decode_wrapper=FakeDecodeWrapper,
        prefill_wrapper=FakePrefillWrapper,
        append=append_paged_kv_cache,
        causal_backend=causal_backend,
    )
