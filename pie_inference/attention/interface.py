"""The seam to attention kernels.

A backend reads a `Forward` batch once (`plan`) and then serves every layer of it (`attend`), so that indices are built
once per batch, not once per layer. The backend decides how keys are found; `kv_cache` decides where they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from ..protocol import Forward


@dataclass(frozen=True)
class AttentionSpec:
    """How one layer attends, apart from what the batch says."""

    scale: float  # factor on the product of query and key
    window: int | None = None  # a query at position p sees keys at positions above p - window
    soft_cap: float | None = None  # scores become soft_cap * tanh(score / soft_cap)
    sinks: bool = False  # each head has a score more, which takes weight and has no value (Xiao et al. 2023)


class AttentionPlan(Protocol):
    """One `Forward` batch of N sequences with T rows in all, ready to run."""

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """Writes keys and values of all rows to their slots, then attends as `Forward` says.

        query: [T, num_heads, head_dim]; it may be overwritten. key_value: [T, 2 * num_kv_heads, head_dim], keys
        before values. Returns [T, num_heads * head_dim]. All in the model's dtype.
        """


@runtime_checkable
class PlanWithSinks(Protocol):
    """The method that a plan needs beside `AttentionPlan` for layers with `AttentionSpec.sinks`."""

    def attend_with_sinks(self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor) -> Tensor:
        """Like `AttentionPlan.attend`; sinks [num_heads], in any number format."""


class AttentionBackend(Protocol):
    """Attention over a `KvCache`, made with one `AttentionSpec` for each layer."""

    def plan(self, batch: Forward) -> AttentionPlan:
        """Prepares a batch, and records the positions of its rows in the cache (`KvCache.place`). It has no
        `position_keys`; `position_masks` puts masks in their place.

        Plan batches in the order in which they run, and call `KvCache.copy` in that order too. Raises BatchError,
        before it records anything, if the batch breaks the protocol.
        """


class GraphPlan(Protocol):
    """Attention for batches of at most `size` rows on memory at fixed addresses, so that a graph recorded with one
    batch serves others."""

    size: int

    def update(self, batch: Forward) -> None:
        """Loads a batch that `GraphBackend.can_replay` accepts. Call it before each recording and each replay, outside
        of them. Records positions as `AttentionBackend.plan` does. Rows beyond the batch write to and see only
        `KvCache.scratch_slot`. Raises BatchError."""

    def attend(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """Like `AttentionPlan.attend`, with `size` rows."""


@runtime_checkable
class GraphBackend(Protocol):
    """The methods that a backend needs beside `AttentionBackend` so that graphs can record it."""

    def can_replay(self, batch: Forward) -> bool:
        """Whether graphs may serve the batch: its plans hold it. (On a GPU these are plans of decode kernels, for
        which each sequence has one row.)"""

    def graph_plan(self, size: int) -> GraphPlan:
        """New memory for batches of at most `size` rows."""
