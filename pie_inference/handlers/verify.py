"""Checks draft tokens against what the model samples."""

from __future__ import annotations

import numpy as np
import torch

from ..device.tensors import download, index_tensor
from ..errors import BatchError
from ..execution import sampling
from ..execution.bias import bias_rows
from ..execution.choices import choice_of
from ..execution.launched import PendingResult, without_numbers
from ..execution.served_model import ServedModel
from ..protocol import Array, Verify, VerifyResult, check_indptr


def verify(served: ServedModel, batch: Verify) -> PendingResult:
    _check(batch, served.description.vocab_size)
    (logits,) = served.next_logits(batch.embeds)
    commands = np.repeat(np.arange(len(batch.temperature)), np.diff(batch.indptr))
    if batch.bias_indptr is not None:
        bias_rows(batch, logits, commands)
    tokens = served.ranks.broadcast(sampling.choose(logits, choice_of(batch, commands), kernels=served.sampling))
    host = download(tokens.to(torch.int32))
    return PendingResult(
        lambda: _compare(batch, host.clamp(min=0).numpy()),
        lambda: without_numbers(commands[host.numpy() < 0]),
    )


def _check(batch: Verify, vocab_size: int) -> None:
    """Raises BatchError or ValueError if the batch is wrong, before any token is sampled."""
    for rows in (batch.embeds, batch.draft, batch.uniform):
        check_indptr(batch.indptr, len(batch.temperature), len(rows), "indptr")
    if (np.diff(batch.indptr) < 1).any():
        raise BatchError("a command has no row for the token behind its draft")
    last = batch.indptr[1:] - 1
    if (batch.draft[last] != -1).any():
        raise BatchError("the last row of a command has a draft token; it must be -1")
    index_tensor(np.delete(batch.draft, last), vocab_size, "token")


def _compare(batch: Verify, chosen: Array) -> VerifyResult:
    """The result, given the chosen tokens, int32 [R]. The last row of a command has no draft token, so it always
    differs."""
    differs = np.flatnonzero(chosen != batch.draft)
    first = differs[np.searchsorted(differs, batch.indptr[:-1])]
    return VerifyResult((first - batch.indptr[:-1]).astype(np.int32), chosen[first])
