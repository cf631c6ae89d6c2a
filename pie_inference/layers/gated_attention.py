"""Attention whose output has a gate of its own (Qiu et al. 2025)."""

from __future__ import annotations

from torch import Tensor

from ..attention.interface import AttentionPlan
from ..device.ranks import share
from ..loading.weights import Block, WeightLoader
from ..ops.interface import Rotation
from .norm import load_norm_weight
from .shape import AttentionShape


class GatedAttention:
    """Grouped-query attention with normalized queries and keys; the sigmoid of a gate multiplies what each head finds.
    The gate of a head stands behind its query in `q_proj`."""

    def __init__(
        self, weights: WeightLoader, layer: int, prefix: str, shape: AttentionShape, eps: float, *, bias: bool
    ) -> None:
        """`layer` counts the layers that have attention. Norms store their weights minus one."""
        queries, keys, values = shape.widths
        blocks = [
            Block(f"{prefix}.{name}_proj", rows) for name, rows in zip("qkv", (2 * queries, keys, values), strict=True)
        ]
        self._qkv = weights.linear(blocks, shape.hidden_size, bias=bias, split="outputs")
        out = [Block(f"{prefix}.o_proj", shape.hidden_size)]
        self._out = weights.linear(out, queries, bias=bias, split="inputs")
        self._query_norm, self._key_norm = (
            load_norm_weight(weights, f"{prefix}.{name}_norm", shape.head_dim, add_one=True) for name in "qk"
        )
        self._heads = share(weights.ranks, shape.num_heads, "attention heads")
        self._kv_heads = share(weights.ranks, shape.num_kv_heads, "key-value heads")
        self._layer, self._dim, self._eps, self._ops = layer, shape.head_dim, eps, weights.ops

    def __call__(self, rows: Tensor, rotation: Rotation, attention: AttentionPlan) -> Tensor:
        """[T, hidden_size] to [T, hidden_size]."""
        found = self._qkv(rows).view(len(rows), -1, self._dim)
        query_gate, key_value = found[:, : 2 * self._heads], found[:, 2 * self._heads :]
        query = self._ops.rms_norm(query_gate[:, ::2], self._query_norm, self._eps)
        key = key_value[:, : self._kv_heads]
        key.copy_(self._ops.rms_norm(key, self._key_norm, self._eps))
        for vectors in (query, key):
            self._ops.rotate_(vectors[..., : rotation.dim], rotation)
        gate = query_gate[:, 1::2].sigmoid()
        attended = attention.attend(self._layer, query, key_value)
        return self._out(attended.view_as(gate).mul_(gate).flatten(1))
