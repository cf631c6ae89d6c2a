"""Samples one token at each embed, and leaves it in a token slot for later batches."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .. import sampling
from ..protocol import NextTokens, Sample
from ..served_model import ServedModel
from ..tensors import download, index_tensor, tensor, upload
from ..waves import PendingResult
from .logits import next_logits
from .token_references import resolve


def sample(served: ServedModel, batch: Sample) -> PendingResult:
    slots = upload(index_tensor(batch.token_slots, len(served.tokens), "token slot"), served.device)
    logits = next_logits(served, batch.embeds)
    if len(batch.recent):
        _penalize(served, batch, logits)
    if (batch.allowed_rows >= 0).any():
        _forbid(batch, logits)
    greedy = not batch.temperature.any()
    tokens = sampling.most_probable(logits) if greedy else sampling.choose(logits, _choice(batch, logits.device))
    served.tokens[slots] = tokens
    host = download(tokens.to(torch.int32))
    return PendingResult(lambda: NextTokens(host.numpy()))


def _penalize(served: ServedModel, batch: Sample, logits: Tensor) -> None:
    rows = np.repeat(np.arange(len(batch.embeds)), np.diff(batch.recent_indptr))
    recent = resolve(served, batch.recent).cpu().numpy()
    strengths = (
        upload(tensor(v, np.float32), logits.device) for v in (batch.repetition, batch.frequency, batch.presence)
    )
    sampling.penalize_(logits, rows, recent, *strengths)


def _forbid(batch: Sample, logits: Tensor) -> None:
    rows = np.flatnonzero(batch.allowed_rows >= 0)
    allowed = batch.allowed[batch.allowed_rows[rows]].astype(np.uint8)
    sampling.forbid_(logits, upload(torch.from_numpy(rows), logits.device), allowed)


def _choice(batch: Sample, device: torch.device) -> sampling.Choice:
    return sampling.Choice(
        temperature=upload(tensor(batch.temperature, np.float64), device),
        top_k=upload(tensor(batch.top_k, np.int64), device),
        top_p=upload(tensor(batch.top_p, np.float64), device),
        min_p=upload(tensor(batch.min_p, np.float64), device),
        uniform=upload(tensor(batch.uniform, np.float64), device),
    )
