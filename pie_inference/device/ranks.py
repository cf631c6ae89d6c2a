"""The ranks that share one model by tensor parallelism: the number of this process, and operations with the others.

Linear layers are split in pairs (Shoeybi et al. 2019). The first layer is split by its outputs (heads, inner width), so
each rank computes its own share. The second is split by its inputs; then the ranks' partial sums are added.
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
        """Replaces the tensors of all ranks by the leader's, in place; returns it."""

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
    """The number of heads or columns of this rank, out of `count`. Raises CheckpointError if ranks do not divide it.
    `what` names them in the message."""
    if count % ranks.size:
        raise CheckpointError(f"{count} {what} cannot be split over {ranks.size} ranks; choose a divisor of {count}")
    return count // ranks.size
