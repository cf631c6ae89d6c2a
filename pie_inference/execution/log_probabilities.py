"""Log-probabilities of chosen tokens, and of the most probable ones beside them: the model's own, before penalties and
whatever else a sampler does to logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..cpu_kernels.sampling import SamplingKernels
from ..device.tensors import download, upload
from ..protocol import SampleResult
from . import sampling


@dataclass(frozen=True)
class Asked:
    """The rows of a batch that ask for log-probabilities. Made before the logits are changed."""

    counts: NDArray[np.int64]  # [N], alternatives of each row of the batch, -1: it does not ask
    rows: Tensor  # int64 [R], those that ask
    normal: Tensor  # float32 [R], logsumexp of their logits
    logits: Tensor  # float32 [R, vocab], a copy
    tokens: Tensor  # int64 [R, widest], the most probable ones
    values: Tensor  # float32 [R, widest], their logits

    @staticmethod
    def of(logits: Tensor, alternatives: NDArray[np.int32], kernels: SamplingKernels | None = None) -> Asked:
        """`alternatives` as in `Sample`. Does not wait for a GPU."""
        counts = np.minimum(alternatives.astype(np.int64), logits.shape[1])
        rows = upload(torch.from_numpy((counts >= 0).nonzero()[0]), logits.device)
        own = logits.index_select(0, rows)
        values, tokens = sampling.top(own, max(int(counts.max(initial=0)), 1), kernels)
        return Asked(counts, rows, own.logsumexp(-1), own, tokens, values)

    def begin(self, chosen: Tensor) -> Answer:
        """Copies what the answer needs to the host, given the tokens of the batch, int64 [N]."""
        tokens = chosen.index_select(0, self.rows)[:, None]
        values = torch.cat([self.logits.gather(1, tokens), self.values], 1) - self.normal[:, None]
        return Answer(self.counts, download(torch.cat([tokens, self.tokens], 1).to(torch.int32)), download(values))


@dataclass(frozen=True)
class Answer:
    """Numbers on their way to the host, for each row that asks: the chosen token, then the most probable ones."""

    counts: NDArray[np.int64]
    tokens: Tensor  # int32 [R, 1 + widest]
    logprobs: Tensor  # float32 [R, 1 + widest]

    def without_numbers(self) -> NDArray[np.int64]:
        """The rows of the batch whose log-probabilities are NaN, once they have come: they depend on all logits, those
        of tokens that may not come among them."""
        rows: NDArray[np.int64] = np.flatnonzero(self.counts >= 0)[np.isnan(self.logprobs[:, 0].numpy())]
        return rows

    def result(self, chosen: NDArray[np.int32]) -> SampleResult:
        """The result of the batch, once they have come."""
        asked = self.counts[self.counts >= 0]
        wanted = np.arange(self.tokens.shape[1]) <= asked[:, None]
        ends = np.concatenate(([0], (self.counts + 1).cumsum())).astype(np.int32)
        return SampleResult(chosen, ends, self.tokens.numpy()[wanted], self.logprobs.numpy()[wanted])
