"""The seam to kernels of Transformer layers. Attention has its own seam, `attention.interface`.

A model uses `Ops`, which it gets with its weights. So a new device brings its kernels without a change to any model.
`torch_ops` runs everywhere; the other implementations are tested against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

Linear = Callable[[Tensor], Tensor]
"""Rows [..., in_features] to rows [..., out_features]."""

MakeLinear = Callable[[Sequence[Tensor], Tensor | None], Linear]
"""A function like `Ops.linear`."""


class GroupedLinear(Protocol):
    """Layers without a bias of equal sizes, such as those of the experts of a model, each for rows of its own."""

    capturable: bool
    """Whether a graph can record it."""

    def __call__(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Rows [R, in_features], those of one layer behind those of the one before, to rows [R, out_features]. ends:
        int32 [layers], where the rows of each layer end; the last one is R, which is at least 1."""


@runtime_checkable
class Groupable(Protocol):
    """A `Linear` that knows how to be one product with others."""

    def __call__(self, rows: Tensor) -> Tensor: ...

    def grouped(self, layers: Sequence[Linear]) -> GroupedLinear | None:
        """One product of all `layers`, of which it is the first; None if they are of several kinds."""


Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class Rotation:
    """The rotary angles of one batch, for all layers that share frequencies."""

    cos: Tensor  # [T, 1, dim]
    sin: Tensor  # [T, 1, dim], negative in the first half

    @property
    def dim(self) -> int:
        """The number of leading dimensions of a head that are rotated; the others stay unchanged."""
        return self.cos.shape[-1]


class Ops(Protocol):
    """All tensors are in the model's dtype and on one device; T is the number of rows."""

    def linear(self, parts: Sequence[Tensor], bias: Tensor | None) -> Linear:
        """Prepares a layer of weights [out_features, in_features], with their outputs side by side. `parts` may be
        views of a memory-mapped file, even in another dtype. They are read once, and not kept if a packed copy
        serves."""

    def rms_norm(self, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Rows [..., D] divided by their root mean square, times `weight` [D], in new memory. `rows` may be a view with
        strides in all dimensions except the last."""

    def add_rms_norm(self, residual: Tensor, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Adds `rows` to `residual` in place, both [T, D]; returns the sum's `rms_norm`, in new memory."""

    def rotate_(self, vectors: Tensor, rotation: Rotation) -> None:
        """Rotates queries or keys [T, heads, rotation.dim] in place. `vectors` may be a view with strides in all
        dimensions except the last, such as the leading dimensions of wider heads."""

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """activation(gate) * up, of [T, 2 * D] with gates first; [T, D]. May overwrite `gate_up`."""
