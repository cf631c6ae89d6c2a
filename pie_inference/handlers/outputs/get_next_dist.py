"""Finds the most probable next tokens at the embeds of each command."""

from __future__ import annotations

import numpy as np

from ...device.tensors import download, tensor, upload
from ...errors import BatchError
from ...execution import sampling
from ...execution.launched import PendingResult, without_numbers
from ...execution.served_model import ServedModel
from ...protocol import Array, GetNextDist, GetNextDistResult, embeds_of_each


def get_next_dist(served: ServedModel, batch: GetNextDist) -> PendingResult:
    widest = int(batch.k.max(initial=1))
    if widest > served.description.max_dist or batch.k.min(initial=1) < 1:
        raise BatchError(f"k must be 1 to {served.description.max_dist}")
    rows = embeds_of_each(batch)
    (logits,) = served.next_logits(batch.embeds)
    temperature = upload(tensor(batch.temperature.repeat(rows), np.float64), logits.device)
    ranked = sampling.distributions(logits, temperature, widest, served.sampling)
    tokens, probabilities = map(download, ranked)
    commands = np.arange(len(rows)).repeat(rows)
    return PendingResult(
        lambda: _ragged(batch, batch.k.repeat(rows), tokens.numpy(), probabilities.numpy()),
        lambda: without_numbers(commands[np.isnan(probabilities[:, 0].numpy())]),
    )


def _ragged(batch: GetNextDist, k: Array, tokens: Array, probabilities: Array) -> GetNextDistResult:
    """The result with the first k tokens of each row, from tokens and probabilities [R, widest]."""
    wanted = np.arange(tokens.shape[1]) < k[:, None]
    ends = np.concatenate(([0], np.cumsum(k))).astype(np.int32)
    return GetNextDistResult(
        indptr=ends if batch.embed_indptr is None else ends[batch.embed_indptr],
        tokens=tokens[wanted].astype(np.int32),
        probabilities=probabilities[wanted].astype(np.float32),
        rest=np.maximum(0, 1 - np.where(wanted, probabilities, 0).sum(-1)).astype(np.float32),
        rest_indptr=batch.embed_indptr,
    )
