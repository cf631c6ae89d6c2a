"""Grouped-query attention (Ainslie et al. 2023) around the seam to attention kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ..attention.interface import AttentionPlan
from ..device.ranks import share
from ..loading.weights import Block, WeightLoader
from ..ops.interface import Rotation
from .qk_norm import QkNorm
from .shape import AttentionShape


def separate_qkv(prefix: str, shape: AttentionShape) -> list[Block]:
    """Separate tensors PREFIX.q_proj, .k_proj and .v_proj, as blocks of one layer."""
    return [Block(f"{prefix}.{name}_proj", rows) for name, rows in zip("qkv", shape.widths, strict=True)]


class Attention:
    """Attention of one layer, with queries, keys and values in one product."""

    def __init__(
        self,
        weights: WeightLoader,
        layer: int,
        prefix: str,
        shape: AttentionShape,
        *,
        projections: Callable[[str, AttentionShape], Sequence[Block]] = separate_qkv,
        bias: bool = False,
        out_bias: bool = False,
        norm: QkNorm | None = None,
    ) -> None:
        blocks = projections(prefix, shape)
        self._qkv = weights.linear(blocks, shape.hidden_size, bias=bias, split="outputs")
        out = [Block(f"{prefix}.o_proj", shape.hidden_size)]
        self._out = weights.linear(out, shape.widths[0], bias=out_bias, split="inputs")
        self._heads = share(weights.ranks, shape.num_heads, "attention heads")
        self._rotated = self._heads + share(weights.ranks, shape.num_kv_heads, "key-value heads")
        self._layer, self._dim, self._norm, self._ops = layer, shape.head_dim, norm, weights.ops

    def __call__(self, rows: Tensor, rotation: Rotation, attention: AttentionPlan) -> Tensor:
        """[T, hidden_size] to [T, hidden_size]."""
        qkv = self._qkv(rows).view(len(rows), -1, self._dim)
        query_key = qkv[:, : self._rotated]
        if self._norm is not None:
            self._norm(query_key)
        self._ops.rotate_(query_key if rotation.dim == self._dim else query_key[..., : rotation.dim], rotation)
        return self._out(attention.attend(self._layer, qkv[:, : self._heads], qkv[:, self._heads :]))
