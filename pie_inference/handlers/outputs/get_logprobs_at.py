"""Computes log-probabilities of given tokens at several embeds of each command."""

from __future__ import annotations

import numpy as np
import torch

from ...device.tensors import download, index_tensor, upload
from ...errors import BatchError
from ...execution.launched import PendingResult
from ...execution.served_model import ServedModel
from ...protocol import GetLogprobsAt, GetLogprobsAtResult, check_indptr


def get_logprobs_at(served: ServedModel, batch: GetLogprobsAt) -> PendingResult:
    count = len(batch.indptr) - 1
    check_indptr(batch.indptr, count, len(batch.embeds), "indptr")
    check_indptr(batch.token_indptr, count, len(batch.tokens), "token_indptr")
    embeds, listed = np.diff(batch.indptr), np.diff(batch.token_indptr)
    if (embeds < 1).any() or (listed % embeds).any():
        raise BatchError("a command has not as many tokens for each of its embeds")
    tokens = upload(index_tensor(batch.tokens, served.description.vocab_size, "token"), served.device)
    each = (listed // embeds).repeat(embeds)
    rows = upload(torch.from_numpy(np.arange(len(batch.embeds)).repeat(each)), served.device)
    logits = served.next_logits(batch.embeds)
    host = download(logits[rows, tokens] - logits.logsumexp(-1)[rows])
    return PendingResult(lambda: GetLogprobsAtResult(host.numpy()))
