"""The ranks that share one model by tensor parallelism: the number of this process, and operations with the others.

Linear layers are split in pairs (Shoeybi et al. 2019). The first layer is split by its outputs (heads, inner width), so
each rank computes its own share. The second is split by its inputs; then the ranks' partial sums are added.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from ..errors import CheckpointError

Result = TypeVar("Result")


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


class _Meeting:
    """Where threads that stand for ranks exchange tensors."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.tensors: list[Tensor] = [torch.empty(0)] * size

    def exchange(self, rank: int, tensor: Tensor) -> list[Tensor]:
        self.tensors[rank] = tensor
        self.barrier.wait()
        everybody = [each.clone() for each in self.tensors]
        self.barrier.wait()
        return everybody


class ThreadRank:
    """Implements `Ranks` in a thread of this process: to prove a split before it serves, and in tests."""

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.size = size
        self._meeting = meeting

    def all_reduce(self, partial: Tensor) -> Tensor:
        return partial.copy_(torch.stack(self._meeting.exchange(self.rank, partial)).sum(0))

    def all_gather(self, share: Tensor) -> Tensor:
        return torch.cat(self._meeting.exchange(self.rank, share), -1)

    def broadcast(self, values: Tensor) -> Tensor:
        return values.copy_(self._meeting.exchange(self.rank, values)[0])

    def all_reduce_min(self, number: int) -> int:
        return int(torch.stack(self._meeting.exchange(self.rank, torch.tensor(number))).min())


def run_ranks(size: int, run: Callable[[Ranks], Result]) -> list[Result]:
    """What `run` gives for each of `size` ranks, which are threads of this process. Raises the error of the rank that
    failed; the others end with it."""
    meeting = _Meeting(size)

    def run_one(rank: int) -> Result:
        try:
            with torch.inference_mode():
                return run(ThreadRank(rank, size, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        running = [pool.submit(run_one, rank) for rank in range(size)]
    failed = [error for each in running if (error := each.exception()) is not None]
    for error in sorted(failed, key=lambda each: isinstance(each, threading.BrokenBarrierError)):
        raise error
    return [each.result() for each in running]


def share(ranks: Ranks, count: int, what: str) -> int:
    """The number of heads or columns of this rank, out of `count`. Raises CheckpointError if ranks do not divide it.
    `what` names them in the message."""
    if count % ranks.size:
        raise CheckpointError(f"{count} {what} cannot be split over {ranks.size} ranks; choose a divisor of {count}")
    return count // ranks.size
