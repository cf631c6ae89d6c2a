"""The seam to kernels of Transformer layers, attention aside (which has its own, `attention.interface`).

A model is written against `Ops` and gets one with its weights, so that a device brings its kernels without a word in
any model. `torch_ops` runs everywhere and is what others are tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

Linear = Callable[[Tensor], Tensor]
"""Rows [..., in_features] to rows [..., out_features]."""

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class Rotation:
    """Rotary angles of one batch, for all layers that share frequencies."""

    cos: Tensor  # [T, 1, dim]
    sin: Tensor  # [T, 1, dim], negative in the first half

    @property
    def dim(self) -> int:
        """Leading dimensions of a head that are rotated; the rest, if any, stay as they are."""
        return self.cos.shape[-1]


class Ops(Protocol):
    """All tensors are in the model's dtype and on one device; T is the number of rows."""

    def linear(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        """Prepares a layer of weights [out_features, in_features], their outputs side by side. `parts` may be views
        of a memory-mapped file, even in another dtype; they are read once and not kept where a packed copy serves."""

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Rows [..., D] over their root mean square, times `weight` [D]; new memory. `rows` may be a view with strides
        in all dimensions but the last."""

    def add_rms_norm(self, residual: Tensor, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Adds `rows` to `residual` in place, both [T, D]; returns the sum's `rms_norm`. May overwrite `rows`."""

    def rotate_(self, vectors: Tensor, rotation: Rotation) -> None:
        """Rotates queries or keys [T, heads, rotation.dim] in place. `vectors` may be a view with strides in all
        dimensions but the last: of wider heads, where only the leading dimensions are rotated."""

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """activation(gate) * up, of [T, 2 * D] with gates first; [T, D]. May overwrite `gate_up`."""
