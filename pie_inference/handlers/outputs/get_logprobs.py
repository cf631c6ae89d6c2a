"""Computes log-probabilities of given tokens at each embed."""

from __future__ import annotations

import numpy as np
import torch

from ...device.tensors import download, index_tensor, upload
from ...execution.launched import PendingResult
from ...execution.served_model import ServedModel
from ...protocol import GetLogprobs, GetLogprobsResult, check_indptr


def get_logprobs(served: ServedModel, batch: GetLogprobs) -> PendingResult:
    check_indptr(batch.indptr, len(batch.embeds), len(batch.tokens), "indptr")
    tokens = upload(index_tensor(batch.tokens, served.description.vocab_size, "token"), served.device)
    rows = torch.from_numpy(np.repeat(np.arange(len(batch.embeds)), np.diff(batch.indptr)))
    rows = upload(rows, served.device)
    logits = served.next_logits(batch.embeds)
    host = download(logits[rows, tokens] - logits.logsumexp(-1)[rows])
    return PendingResult(lambda: GetLogprobsResult(host.numpy()))
