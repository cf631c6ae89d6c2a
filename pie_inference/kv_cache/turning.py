"""Rotates keys that are in the cache, so that they are at other positions: rotary embeddings compose."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.interface import Rotation

WORK_BYTES = 12
"""A number of a key takes at most so many in `Turn`, with its copy; only those of float64 take more."""


class Turn:
    """Rotates up to `heads` heads in memory of its own, in at least float32, whatever the cache has."""

    def __init__(self, heads: int, like: Rotation) -> None:
        """`like`: a rotation, whose rows and dtype those of all others are."""
        rows, dim = len(like.cos), like.dim
        self._before, self._after = (
            torch.empty(heads, rows, dim, dtype=like.cos.dtype, device=like.cos.device) for _ in range(2)
        )

    def __call__(self, keys: Tensor, rotation: Rotation) -> None:
        """Rotates the first dimensions of keys [heads, M, head_dim] in place; it takes no further memory."""
        half, turned = rotation.dim // 2, keys[..., : rotation.dim]
        before, after = self._before[: len(keys)], self._after[: len(keys)]
        cos, sin = rotation.cos.squeeze(1), rotation.sin.squeeze(1)
        before.copy_(turned)
        torch.mul(before, cos, out=after)
        after[..., :half].addcmul_(before[..., half:], sin[..., :half])
        after[..., half:].addcmul_(before[..., :half], sin[..., half:])
        turned.copy_(after)
