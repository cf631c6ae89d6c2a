"""The most probable of the tokens that may come, by the compiled kernel."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .library import ADDRESS, INTEGER, Library


class MostProbable:
    """Finds tokens without writing to their logits, and reads none of a token that may not come."""

    def __init__(self, library: Library) -> None:
        a, n = ADDRESS, INTEGER
        self._find = library.kernel("most_probable_allowed", a, n, a, a, n, a, n, n, n)

    def __call__(self, logits: Tensor, rows: NDArray[np.int64], allowed: NDArray[np.uint8]) -> Tensor:
        """Tokens, int64 [len(rows)], for `logits` float32 [N, vocab] and bits `allowed` [len(rows), ceil(vocab / 8)],
        lowest first; the first of several with the same logit, or the first that is NaN. -1 where no token may
        come."""
        assert logits.dtype == torch.float32
        assert logits.stride(1) == 1
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
