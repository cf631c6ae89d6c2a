"""Root mean square normalization."""

from __future__ import annotations

import torch
from torch import Tensor

from ..loading.weights import WeightLoader


class RmsNorm:
    """Divides rows by their root mean square and multiplies them by a weight [size].

    add_one: the checkpoint stores the weight minus one, as Gemma's do.
    """

    def __init__(self, weights: WeightLoader, name: str, size: int, eps: float, *, add_one: bool = False) -> None:
        self._weight = load_norm_weight(weights, name, size, add_one=add_one)
        self._eps = eps
        self._ops = weights.ops

    def __call__(self, rows: Tensor) -> Tensor:
        return self._ops.rms_norm(rows, self._weight, self._eps)

    def after_adding(self, residual: Tensor, rows: Tensor | None) -> Tensor:
        """Adds `rows` to `residual` in place, then normalizes the sum."""
        return self(residual) if rows is None else self._ops.add_rms_norm(residual, rows, self._weight, self._eps)


def load_norm_weight(weights: WeightLoader, name: str, size: int, *, add_one: bool = False) -> Tensor:
    """The tensor NAME.weight [size]. `add_one` adds one to it before the sum is rounded to the model's dtype."""
    if not add_one:
        return weights.tensor(f"{name}.weight", size)
    wide = torch.promote_types(weights.dtype, torch.float32)
    return (weights.tensor(f"{name}.weight", size, dtype=wide) + 1).to(weights.dtype)
