"""Recurrences with Triton kernels, row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from . import triton_kernels as kernels
from .interface import Runs

CHANNELS = 256
ROWS = 16
COLUMNS = 32


class TritonRecurrences:
    """Implements `Recurrences`."""

    def convolve(self, rows: Tensor, taps: Tensor, states: Tensor, runs: Runs) -> Tensor:
        result = torch.empty_like(rows, memory_format=torch.contiguous_format)
        channels, sequences = rows.shape[1], len(runs.reads)
        blocks = -(-channels // CHANNELS)
        sizes = (channels, rows.stride(0), states.stride(0))
        kernels.convolve[(sequences, -(-runs.longest // ROWS), blocks)](
            result,
            rows,
            taps,
            states,
            runs.starts,
            runs.reads,
            *sizes,
            WIDTH=len(taps),
            ROWS=ROWS,
            BLOCK=CHANNELS,
        )
        kernels.keep_inputs[(sequences, blocks)](
            rows, states, runs.starts, runs.reads, runs.writes, *sizes, WIDTH=len(taps), BLOCK=CHANNELS
        )
        return result

    def gated_delta(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, states: Tensor, runs: Runs
    ) -> Tensor:
        result = torch.empty_like(value, memory_format=torch.contiguous_format)
        (_, key_heads, size), (_, heads, width) = key.shape, value.shape
        kernels.gated_delta[(-(-width // COLUMNS), heads, len(runs.reads))](
            result,
            query,
            key,
            value,
            decay,
            beta,
            states,
            runs.starts,
            runs.reads,
            runs.writes,
            heads,
            heads // key_heads,
            query.stride(0),
            key.stride(0),
            value.stride(0),
            states.stride(0),
            size**-0.5,
            K=size,
            V=width,
            PADDED=1 << (size - 1).bit_length(),
            BLOCK=COLUMNS,
        )
        return result
