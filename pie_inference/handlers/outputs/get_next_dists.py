"""Finds the most probable next tokens at several embeds of each command."""

from __future__ import annotations

import numpy as np

from ...device.tensors import download, tensor, upload
from ...errors import BatchError
from ...execution import sampling
from ...execution.launched import PendingResult
from ...execution.served_model import ServedModel
from ...protocol import Array, GetNextDists, GetNextDistsResult, check_indptr


def get_next_dists(served: ServedModel, batch: GetNextDists) -> PendingResult:
    widest = int(batch.k.max(initial=1))
    if widest > served.description.max_dist or batch.k.min(initial=1) < 1:
        raise BatchError(f"k must be 1 to {served.description.max_dist}")
    check_indptr(batch.indptr, len(batch.k), len(batch.embeds), "indptr")
    rows = np.diff(batch.indptr)
    logits = served.next_logits(batch.embeds)
    temperature = upload(tensor(batch.temperature.repeat(rows), np.float64), logits.device)
    tokens, probabilities = map(download, sampling.distributions(logits, temperature, widest))
    return PendingResult(lambda: _ragged(batch, tokens.numpy(), probabilities.numpy()))


def _ragged(batch: GetNextDists, tokens: Array, probabilities: Array) -> GetNextDistsResult:
    """The result with the first k tokens of each row, from tokens and probabilities [R, widest]."""
    rows = np.diff(batch.indptr)
    wanted = np.arange(tokens.shape[1]) < batch.k.repeat(rows)[:, None]
    return GetNextDistsResult(
        indptr=np.concatenate(([0], np.cumsum(batch.k * rows))).astype(np.int32),
        tokens=tokens[wanted].astype(np.int32),
        probabilities=probabilities[wanted].astype(np.float32),
        rest_indptr=batch.indptr.astype(np.int32),
        rest=np.maximum(0, 1 - np.where(wanted, probabilities, 0).sum(-1)).astype(np.float32),
    )
