"""Computes log-probabilities of given tokens at the embeds of each command."""

from __future__ import annotations

import numpy as np
import torch

from ...device.tensors import download, index_tensor
from ...execution.launched import Faults, PendingResult, without_numbers
from ...execution.served_model import ServedModel
from ...protocol import GetLogprobs, GetLogprobsResult, tokens_of_each


def get_logprobs(served: ServedModel, batch: GetLogprobs) -> PendingResult:
    counts = tokens_of_each(batch)
    asked = index_tensor(batch.tokens, served.description.vocab_size, "token")
    of_each = torch.from_numpy(np.arange(len(batch.embeds)).repeat(counts))
    logits, tokens, rows = served.next_logits(batch.embeds, asked, of_each)
    host = download(logits[rows, tokens] - logits.logsumexp(-1)[rows])

    def faults() -> Faults:
        wrong = np.flatnonzero(np.isnan(host.numpy()))
        return without_numbers(np.searchsorted(batch.indptr, wrong, side="right") - 1)

    return PendingResult(lambda: GetLogprobsResult(host.numpy()), faults)
