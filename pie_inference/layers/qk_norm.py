"""Normalization of queries and keys before they are rotated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..device.ranks import share
from ..device.tensors import widened
from ..loading.weights import WeightLoader
from .norm import load_norm_weight
from .shape import AttentionShape

QkNorm = Callable[[Tensor], None]
"""Normalizes queries and keys [T, num_heads + num_kv_heads, head_dim] of this rank, in place."""


class HeadNorm:
    """Normalizes each head separately, as in Qwen3 and Gemma 3. It is a `QkNorm`."""

    def __init__(
        self, weights: WeightLoader, prefix: str, shape: AttentionShape, eps: float, *, add_one: bool = False
    ) -> None:
        self._query_weight, self._key_weight = (
            load_norm_weight(weights, f"{prefix}.{name}_norm", shape.head_dim, add_one=add_one) for name in "qk"
        )
        self._heads = share(weights.ranks, shape.num_heads, "attention heads")
        self._eps, self._ops = eps, weights.ops

    def __call__(self, query_key: Tensor) -> None:
        query, key = query_key[:, : self._heads], query_key[:, self._heads :]
        query.copy_(self._ops.rms_norm(query, self._query_weight, self._eps))
        key.copy_(self._ops.rms_norm(key, self._key_weight, self._eps))


class WidthNorm:
    """Normalizes all heads together, as in OLMo 2. Each rank has some of the heads, so the ranks add their sums of
    squares. It is a `QkNorm`."""

    def __init__(self, weights: WeightLoader, prefix: str, shape: AttentionShape, eps: float) -> None:
        self._ranks, self._ops, self._eps = weights.ranks, weights.ops, eps
        self._heads = share(weights.ranks, shape.num_heads, "attention heads")
        self._widths = shape.widths[:2]
        names = (f"{prefix}.{name}_norm" for name in "qk")
        self._weights = [_own_weight(weights, *each) for each in zip(names, self._widths, strict=True)]

    def __call__(self, query_key: Tensor) -> None:
        parts = [part.view(len(part), -1) for part in (query_key[:, : self._heads], query_key[:, self._heads :])]
        normalize = self._normalize_whole if self._ranks.size == 1 else self._normalize_shares
        for part, normalized in zip(parts, normalize(parts), strict=True):
            part.copy_(normalized)

    def _normalize_whole(self, parts: list[Tensor]) -> Iterator[Tensor]:
        for part, weight in zip(parts, self._weights, strict=True):
            yield self._ops.rms_norm(part, weight, self._eps)

    def _normalize_shares(self, parts: list[Tensor]) -> Iterator[Tensor]:
        squares = torch.stack([widened(part).square().sum(-1) for part in parts])
        for part, weight, width, total in zip(
            parts, self._weights, self._widths, self._ranks.all_reduce(squares), strict=True
        ):
            yield widened(part) * torch.rsqrt(total / width + self._eps).unsqueeze(-1) * weight


def _own_weight(weights: WeightLoader, name: str, width: int) -> Tensor:
    count = width // weights.ranks.size
    return load_norm_weight(weights, name, width).narrow(0, weights.ranks.rank * count, count)
