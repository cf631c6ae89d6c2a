"""Tokens of the compiled kernels: the most probable of those that may come, and drawn ones."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .library import ADDRESS, INTEGER, Library

Integers = NDArray[np.int64]


class SamplingKernels:
    """Finds tokens without writing to their logits."""

    def __init__(self, library: Library) -> None:
        a, n = ADDRESS, INTEGER
        self._find = library.kernel("most_probable_allowed", a, n, a, a, n, a, n, n, n)
        self._draw = library.kernel("draw_tokens", a, n, a, a, a, a, n, n, n)
        self._rank = library.kernel("rank_tokens", a, n, a, n, a, a, n, n, n)

    def most_probable(self, logits: Tensor, rows: Integers, allowed: NDArray[np.uint8]) -> Tensor:
        """Tokens, int64 [len(rows)], for `logits` float32 [N, vocab] and bits `allowed` [len(rows), ceil(vocab / 8)],
        lowest first; the first of several with the same logit, or the first that is NaN. -1 where no token may come.
        Reads no logit of a token that may not come."""
        _check(logits)
        rows, allowed = np.ascontiguousarray(rows), np.ascontiguousarray(allowed)
        tokens = torch.empty(len(rows), dtype=torch.int64)
        self._find(
            logits.data_ptr(),
            logits.stride(0),
            rows.ctypes.data,
            allowed.ctypes.data,
            allowed.shape[1],
            tokens.data_ptr(),
            len(rows),
            logits.shape[1],
            torch.get_num_threads(),
        )
        return tokens

    def draw(self, logits: Tensor, highest: Tensor, bounds: NDArray[np.float64], top_k: Integers) -> Tensor:
        """Tokens, int64 [N, 1], for `logits` float32 [N, vocab], the highest of each row [N, 1], and the parameters of
        `execution.choices.Choice`: `bounds` [4, N] are temperature, which is positive, top_p, min_p and uniform. Any
        token where the highest logit is no finite number. Raises ValueError if the shapes do not fit."""
        _check(logits, highest=len(highest), bounds=bounds.shape[1], top_k=len(top_k))
        bounds, top_k = np.ascontiguousarray(bounds), np.ascontiguousarray(top_k)
        tokens = torch.empty(len(logits), 1, dtype=torch.int64)
        self._draw(
            logits.data_ptr(),
            logits.stride(0),
            highest.contiguous().data_ptr(),
            bounds.ctypes.data,
            top_k.ctypes.data,
            tokens.data_ptr(),
            len(logits),
            logits.shape[1],
            torch.get_num_threads(),
        )
        return tokens

    def rank(self, logits: Tensor, width: int, temperature: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The `width` most probable tokens of each row of `logits` float32 [N, vocab], in order, int64 [N, width], or
        all if there are fewer. Then their probabilities at `temperature` float64 [N], which are NaN if a logit of the
        row is; undefined without a temperature. Raises ValueError if the shapes do not fit."""
        _check(logits, temperature=len(logits) if temperature is None else len(temperature))
        width = min(width, logits.shape[1])
        tokens = torch.empty(len(logits), width, dtype=torch.int64)
        probabilities = torch.empty_like(tokens, dtype=torch.float64)
        self._rank(
            logits.data_ptr(),
            logits.stride(0),
            None if temperature is None else temperature.contiguous().data_ptr(),
            width,
            tokens.data_ptr(),
            probabilities.data_ptr(),
            len(logits),
            logits.shape[1],
            torch.get_num_threads(),
        )
        return tokens, probabilities


def _check(logits: Tensor, **lengths: int) -> None:
    """The kernels read as many numbers as there are rows."""
    assert logits.dtype == torch.float32
    assert logits.stride(1) == 1
    for name, length in lengths.items():
        if length != len(logits):
            raise ValueError(f"{name} has {length} elements for {len(logits)} rows")
