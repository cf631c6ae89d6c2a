"""The Transformer layer that normalizes before attention and feed-forward, as in Llama."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..attention.interface import AttentionPlan
from ..loading.weights import WeightLoader
from ..ops.interface import Rotation
from .mlp import FeedForward
from .norm import RmsNorm


class PreNormLayer:
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(
        self,
        weights: WeightLoader,
        prefix: str,
        size: int,
        eps: float,
        attention: Callable[[Tensor, Rotation, AttentionPlan], Tensor],
        feed_forward: FeedForward,
        *,
        add_one: bool = False,
        capturable: bool = True,
    ) -> None:
        """`add_one`: norms store their weights minus one. `capturable`: whether graphs can record `attention`."""
        self._attention_norm = RmsNorm(weights, f"{prefix}.input_layernorm", size, eps, add_one=add_one)
        self._attention = attention
        name = f"{prefix}.post_attention_layernorm"
        self._feed_forward_norm = RmsNorm(weights, name, size, eps, add_one=add_one)
        self._feed_forward = feed_forward
        self.capturable = capturable and feed_forward.capturable

    def __call__(self, hidden: Tensor, change: Tensor | None, rotation: Rotation, attention: AttentionPlan) -> Tensor:
        mixed = self._attention(self._attention_norm.after_adding(hidden, change), rotation, attention)
        return self._feed_forward(self._feed_forward_norm.after_adding(hidden, mixed))
