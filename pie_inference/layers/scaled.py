"""A factor on the result of a part of a model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class Scaled:
    """Multiplies the result of `part`, which must be new memory, by `factor`."""

    def __init__(self, part: Callable[..., Tensor], factor: float) -> None:
        self._part = part
        self._factor = factor
        self.capturable = getattr(part, "capturable", True)

    def __call__(self, *inputs: object) -> Tensor:
        return self._part(*inputs).mul_(self._factor)
