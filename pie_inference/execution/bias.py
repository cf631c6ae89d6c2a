"""Logit biases of a batch, on the device of the logits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..device.tensors import index_tensor, tensor, upload
from ..errors import BatchError
from ..protocol import Array, Sample, Verify, check_indptr


def bias_rows(batch: Sample | Verify, logits: Tensor, commands: Array) -> None:
    """Adds the biases to the logits, in place; `commands` [rows of the logits] says whose each row is. Raises
    BatchError, ValueError where the arrays do not fit."""
    if batch.bias_indptr is None or batch.bias_tokens is None or batch.bias_values is None:
        raise BatchError("the arrays of a logit bias come together")
    check_indptr(batch.bias_indptr, len(batch.temperature), len(batch.bias_tokens), "bias_indptr")
    check_indptr(batch.bias_indptr, len(batch.temperature), len(batch.bias_values), "bias_indptr")
    begins, counts = batch.bias_indptr[:-1].astype(np.int64)[commands], np.diff(batch.bias_indptr)[commands]
    within = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    places = np.repeat(begins, counts) + within
    tokens = index_tensor(batch.bias_tokens[places], logits.shape[1], "token")
    rows = torch.from_numpy(np.repeat(np.arange(len(commands)), counts))
    values = tensor(batch.bias_values[places], np.float32)
    own_rows, own_tokens, own_values = (upload(part, logits.device) for part in (rows, tokens, values))
    logits[own_rows, own_tokens] += own_values
