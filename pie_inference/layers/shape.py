"""Sizes that layers share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of an attention layer, over all ranks."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def widths(self) -> tuple[int, int, int]:
        """Widths of queries, keys and values."""
        kv = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, kv, kv
