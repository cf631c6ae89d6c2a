"""Root mean square normalization."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


class RmsNorm:
    """Divides rows by their root mean square and multiplies them by `weight` [hidden_size]."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = eps

    def __call__(self, rows: Tensor) -> Tensor:
        return F.rms_norm(rows, self._weight.shape, self._weight, self._eps)
