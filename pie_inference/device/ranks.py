"""The ranks that share one model by tensor parallelism: who this process is, and what it does with the others.

Linear layers are split in pairs (Shoeybi et al. 2019): the first by its outputs (heads, inner width), so that each rank
computes its own share, the second by its inputs, after which the ranks' partial sums are added.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ..errors import CheckpointError


class Ranks(Protocol):
    """A group of processes; all call the same operations in the same order."""

    rank: int
    size: int

    def all_reduce(self, partial: Tensor) -> Tensor:
        """Adds the ranks' tensors in place; returns it."""

    def all_gather(self, share: Tensor) -> Tensor:
        """Joins the ranks' tensors along the last dimension."""

    def broadcast(self, values: Tensor) -> Tensor:
        """Replaces all ranks' tensors by the leader's, in place; returns it."""

    def all_reduce_min(self, number: int) -> int:
        """The smallest of the ranks' numbers."""


class SingleRank:
    """Implements `Ranks` for a worker of one process."""

    rank = 0
    size = 1

    def all_reduce(self, partial: Tensor) -> Tensor:
        return partial

    def all_gather(self, share: Tensor) -> Tensor:
        return share

    def broadcast(self, values: Tensor) -> Tensor:
        return values

    def all_reduce_min(self, number: int) -> int:
        return number


def share(ranks: Ranks, count: int, what: str) -> int:
    """How many of `count` heads or columns are this rank's. Raises CheckpointError where they do not divide."""
    if count % ranks.size:
        raise CheckpointError(f"{count} {what} cannot be split over {ranks.size} ranks; choose a divisor")
    return count // ranks.size
