"""The pool of states of a model whose layers have some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import BatchError
from ..protocol import Forward
from .batches import runs_of
from .interface import Recurrences, Runs


@dataclass(frozen=True)
class StateShape:
    """What a slot holds: the states of `layers` layers, each as `numbers` numbers."""

    layers: int
    numbers: int

    def nbytes(self, dtype: torch.dtype) -> int:
        """Memory of a slot, for a model in `dtype`."""
        return self.layers * self.numbers * state_dtype(dtype).itemsize


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of states, for a model in `dtype`."""
    return torch.promote_types(dtype, torch.float32)


class States:
    """The states that the layers of a model read and write, and the kernels that do so. Layers ask for theirs while a
    batch runs."""

    def __init__(self, recurrences: Recurrences, dtype: torch.dtype, device: torch.device) -> None:
        self.recurrences = recurrences
        self.dtype = state_dtype(dtype)
        self._device = device
        self._pool: Tensor | None = None
        self._runs: Runs | None = None

    def allocate(self, slots: int, shape: StateShape) -> None:
        """Makes the pool, [slots, layers, numbers]: a slot is one piece of memory."""
        self._pool = torch.zeros(slots, shape.layers, shape.numbers, dtype=self.dtype, device=self._device)

    @property
    def slots(self) -> int:
        """The number of slots."""
        return 0 if self._pool is None else len(self._pool)

    @property
    def pool(self) -> Tensor:
        """All slots, [slots, layers, numbers]."""
        assert self._pool is not None, "allocate the pool first"
        return self._pool

    @contextmanager
    def beside(self, batch: Forward) -> Iterator[None]:
        """Within it, the batch runs. Raises BatchError if its slots are wrong."""
        if not self.slots:
            if batch.state_reads is not None or batch.state_writes is not None:
                raise BatchError("the model keeps no states")
            yield
            return
        with self.running(runs_of(batch, self.slots, self._device)):
            yield

    def piece(self, batch: Forward) -> AbstractContextManager[None]:
        """Within it, a piece of a batch runs that `beside` has accepted."""
        assert batch.state_reads is not None
        assert batch.state_writes is not None
        counts = np.diff(batch.q_indptr)
        return self.running(Runs.make(counts, batch.state_reads, batch.state_writes, self._device))

    @contextmanager
    def running(self, runs: Runs) -> Iterator[None]:
        """Within it, a batch with these sequences runs."""
        self._runs = runs
        try:
            yield
        finally:
            self._runs = None

    @property
    def runs(self) -> Runs:
        """The sequences of the batch that runs."""
        assert self._runs is not None, "no batch runs"
        return self._runs

    def layer(self, number: int) -> Tensor:
        """The states of one of the layers that have some, [slots, numbers], a view."""
        return self.pool[:, number]
