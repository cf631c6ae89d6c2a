"""Root mean square normalization."""

from __future__ import annotations

from torch import Tensor

from ..weights import WeightLoader


class RmsNorm:
    """Divides rows by their root mean square and multiplies them by a weight [size]."""

    def __init__(self, weights: WeightLoader, name: str, size: int, eps: float) -> None:
        self._weight = weights.tensor(f"{name}.weight", size)
        self._eps = eps
        self._ops = weights.ops

    def __call__(self, rows: Tensor) -> Tensor:
        return self._ops.rms_norm(rows, self._weight, self._eps)

    def after_adding(self, residual: Tensor, rows: Tensor | None) -> Tensor:
        """Adds `rows` to `residual` in place, then normalizes the sum."""
        return self(residual) if rows is None else self._ops.add_rms_norm(residual, rows, self._weight, self._eps)
