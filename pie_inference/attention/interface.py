"""The seam to attention kernels.

A backend reads a `Forward` batch once (`plan`) and then serves every layer of it (`attend`), so that building indices
costs once per batch, not once per layer. It owns how keys are found; `kv_cache` owns where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from ..protocol import Forward


@dataclass(frozen=True)
class AttentionSpec:
    """How one layer attends, beside what the batch says."""

    scale: float  # on the product of query and key
    window: int | None = None  # a query at position p sees keys at positions above p - window
    soft_cap: float | None = None  # scores become soft_cap * tanh(score / soft_cap)


class AttentionPlan(Protocol):
    """One `Forward` batch of N sequences with T rows in all, ready to run."""

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """Writes keys and values of all rows to their slots, then attends as `Forward` says.

        query: [T, num_heads, head_dim]; it may be overwritten. key_value: [T, 2 * num_kv_heads, head_dim], keys
        before values. Returns [T, num_heads * head_dim]. All in the model's dtype.
        """


class AttentionBackend(Protocol):
    """Attention over a `KvCache`, made with one `AttentionSpec` for each layer."""

    def plan(self, batch: Forward) -> AttentionPlan:
        """Prepares a batch, and notes the positions of its rows in the cache (`KvCache.place`).

        Batches are planned in the order in which they run; the same holds for `KvCache.copy`. Raises BatchError where
        one breaks the protocol, and has noted nothing then.
        """


class GraphPlan(Protocol):
    """Attention for decode batches of at most `size` sequences in memory that stays where it is, so that a CUDA graph
    recorded with one batch serves others."""

    size: int

    def update(self, batch: Forward) -> None:
        """Loads a batch that `GraphBackend.can_replay` accepts, before each recording and each replay, outside of them;
        notes positions as `AttentionBackend.plan` does. Rows beyond the batch's go to and see `KvCache.scratch_slot`.
        Raises BatchError."""

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """As `AttentionPlan.attend`, with `size` rows."""


@runtime_checkable
class GraphBackend(Protocol):
    """What a backend that CUDA graphs can record offers beside `AttentionBackend`."""

    def can_replay(self, batch: Forward) -> bool:
        """Whether graphs may serve the batch: one query for each sequence, and what its plans can hold."""

    def graph_plan(self, size: int) -> GraphPlan:
        """New memory for batches of at most `size` sequences."""
