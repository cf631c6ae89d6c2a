"""The seam to kernels of layers with a recurrent state: the gated delta rule, and the convolution before it.

A state is what a layer knows of a text after some of its rows. States live in slots of a pool. One call runs rows of
several sequences; each begins with the state of a slot, and leaves states in slots. `torch_recurrences` is the
definition; the other implementations are tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..device.tensors import upload_together

Numbers = Sequence[int] | NDArray[Any]

NONE = -1
"""In place of a slot: begins with zeros, or leaves nothing."""


@dataclass(frozen=True)
class Runs:
    """The sequences of one batch of T rows, and their slots. All tensors are int64 on the model's device.

    A slot that is written is written once, and read by no other sequence of the batch. A sequence may write the slot
    that it reads with its last row, and with no row before.
    """

    starts: Tensor  # [N + 1]; rows starts[i] to starts[i + 1] are those of sequence i, at least one
    reads: Tensor  # [N]; the slot that a sequence begins with, or NONE
    writes: Tensor  # [T]; the slot that gets the state after this row, or NONE
    longest: int  # number of rows of the longest sequence

    @staticmethod
    def make(counts: Numbers, reads: Numbers, writes: Numbers, device: torch.device) -> Runs:
        """Makes them of the number of rows of each sequence."""
        starts = np.concatenate(([0], np.cumsum(counts)))
        parts = [torch.from_numpy(np.array(part, np.int64)) for part in (starts, reads, writes)]
        starts_there, reads_there, writes_there = upload_together(parts, device)
        return Runs(starts_there, reads_there, writes_there, int(np.max(counts, initial=0)))


class Recurrences(Protocol):
    """Rows are in the model's dtype; states are float32, or float64 if the model is. A row's result depends on its own
    sequence only."""

    def convolve(self, rows: Tensor, taps: Tensor, states: Tensor, runs: Runs) -> Tensor:
        """The causal convolution of each channel of `rows` [T, C], then SiLU; [T, C].

        `taps` [W, C] has the weight of the oldest input first. `states` [slots, W - 1, C] has the last inputs, the
        oldest first; they are zeros where a text begins. `taps` are in the dtype of states.
        """

    def gated_delta(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, states: Tensor, runs: Runs
    ) -> Tensor:
        """The gated delta rule (Yang et al. 2024, equation 10), row by row: S = exp(decay) S, then
        S += beta k (v - S^T k)^T; the result is S^T q.

        query and key: [T, key_heads, K]; they are divided by their lengths, and the query by the root of K. value:
        [T, heads, V], for a multiple of key_heads: neighbouring heads share a key. decay and beta: [T, heads] in the
        dtype of states, decays at most 0. states: [slots, heads, K, V]. Returns [T, heads, V]. Query, key and value may
        be views with a stride of rows.
        """
