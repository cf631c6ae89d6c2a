"""Recurrences with the kernels of `cpu_kernels`: row by row, so a state has the same bits however a text is cut."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cpu_kernels.library import ADDRESS, INTEGER, SUFFIX, Library
from .interface import Runs


class CpuRecurrences:
    """Implements `Recurrences` in float32 and bfloat16."""

    def __init__(self, library: Library, dtype: torch.dtype) -> None:
        a, n, suffix = ADDRESS, INTEGER, SUFFIX[dtype]
        self._convolve = library.kernel(f"convolve_{suffix}", a, n, a, a, a, n, n, n, a, a, a, n, n, n)
        delta = (a, n, a, n, a, n, a, a, a, a, n, n, n, n, n, a, a, a, n, n, n)
        self._gated_delta = library.kernel(f"gated_delta_{suffix}", *delta)

    def convolve(self, rows: Tensor, taps: Tensor, states: Tensor, runs: Runs) -> Tensor:
        assert rows.stride(1) == 1
        assert all(each.is_contiguous() for each in (taps, states[0]))
        output = torch.empty_like(rows, memory_format=torch.contiguous_format)
        self._convolve(
            rows.data_ptr(),
            rows.stride(0),
            taps.data_ptr(),
            output.data_ptr(),
            states.data_ptr(),
            states.stride(0),
            rows.shape[1],
            len(taps),
            *_batch(runs, len(rows)),
        )
        return output

    def gated_delta(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, states: Tensor, runs: Runs
    ) -> Tensor:
        output = torch.empty_like(value, memory_format=torch.contiguous_format)
        assert all(each.is_contiguous() for each in (states[0], decay, beta))
        self._gated_delta(
            *_heads(query),
            *_heads(key),
            *_heads(value),
            decay.data_ptr(),
            beta.data_ptr(),
            output.data_ptr(),
            states.data_ptr(),
            states.stride(0),
            key.shape[2],
            *value.shape[:0:-1],
            key.shape[1],
            *_batch(runs, len(value)),
        )
        return output


def _heads(vectors: Tensor) -> tuple[int, int]:
    """Address and stride of rows [T, heads, dim], whose heads lie side by side."""
    assert vectors.stride()[1:] == (vectors.shape[2], 1)
    return vectors.data_ptr(), vectors.stride(0)


def _batch(runs: Runs, rows: int) -> tuple[int, int, int, int, int, int]:
    parts = (runs.starts, runs.reads, runs.writes)
    assert all(each.is_contiguous() for each in parts)
    starts, reads, writes = (each.data_ptr() for each in parts)
    return starts, reads, writes, len(runs.reads), rows, torch.get_num_threads()
