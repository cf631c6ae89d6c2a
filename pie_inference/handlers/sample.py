"""Samples one token at each embed, and writes it to a token slot for later batches."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..device.tensors import download, index_tensor, tensor, upload
from ..execution import sampling
from ..execution.bias import bias_rows
from ..execution.launched import PendingResult
from ..execution.log_probabilities import Asked
from ..execution.served_model import ServedModel
from ..protocol import Sample, SampleResult, check_indptr


def sample(served: ServedModel, batch: Sample) -> PendingResult:
    slots = upload(index_tensor(batch.token_slots, len(served.tokens), "token slot"), served.device)
    logits = served.next_logits(batch.embeds)
    asked = Asked.of(logits, batch.alternatives) if batch.alternatives is not None else None
    if len(batch.recent):
        _penalize(served, batch, logits)
    if batch.bias_indptr is not None:
        bias_rows(batch, logits, np.arange(len(batch.embeds)))
    if (batch.allowed_rows >= 0).any():
        _forbid(batch, logits)
    tokens = sampling.choose(logits, _choice(batch))
    tokens = served.ranks.broadcast(tokens)  # devices may differ in the last bit of a sum
    served.tokens[slots] = tokens
    host = download(tokens.to(torch.int32))
    if asked is None:
        return PendingResult(lambda: SampleResult(host.numpy()))
    answer = asked.begin(tokens)
    return PendingResult(lambda: answer.result(host.numpy()))


def _penalize(served: ServedModel, batch: Sample, logits: Tensor) -> None:
    check_indptr(batch.recent_indptr, len(batch.embeds), len(batch.recent), "recent_indptr")
    rows = np.repeat(np.arange(len(batch.embeds)), np.diff(batch.recent_indptr))
    recent = served.token_ids(batch.recent)
    strengths = (
        upload(tensor(v, np.float32), logits.device) for v in (batch.repetition, batch.frequency, batch.presence)
    )
    sampling.penalize_(logits, upload(torch.from_numpy(rows), logits.device), recent, *strengths)


def _forbid(batch: Sample, logits: Tensor) -> None:
    rows = np.flatnonzero(batch.allowed_rows >= 0)
    allowed = batch.allowed[batch.allowed_rows[rows]].astype(np.uint8)
    sampling.forbid_(logits, upload(torch.from_numpy(rows), logits.device), allowed)


def _choice(batch: Sample) -> sampling.Choice:
    return sampling.Choice(
        temperature=batch.temperature.astype(np.float64),
        top_k=batch.top_k.astype(np.int64),
        top_p=batch.top_p.astype(np.float64),
        min_p=batch.min_p.astype(np.float64),
        uniform=batch.uniform.astype(np.float64),
    )
