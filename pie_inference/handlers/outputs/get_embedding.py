"""Pools hidden states at the embeds of each command to one vector."""

from __future__ import annotations

import numpy as np
import torch

from ...device.tensors import download, index_tensor, upload
from ...errors import BatchError
from ...execution.launched import PendingResult, without_numbers
from ...execution.served_model import ServedModel
from ...protocol import Array, GetEmbedding, GetEmbeddingResult, check_indptr


def get_embedding(served: ServedModel, batch: GetEmbedding) -> PendingResult:
    """Sums and lengths are float32, whatever the model computes in."""
    check_indptr(batch.indptr, len(batch.mean), len(batch.embeds), "indptr")
    size, counts = served.description.hidden_size, np.diff(batch.indptr)
    if (counts < 1).any():
        raise BatchError("a command names no embed")
    if batch.dimensions.min(initial=1) < 1 or batch.dimensions.max(initial=1) > size:
        raise BatchError(f"dimensions must be 1 to {size}")
    rows = index_tensor(batch.embeds, len(served.embeds), "embed")
    firsts = np.where(batch.mean, batch.indptr[:-1], batch.indptr[1:] - 1)
    lengths = batch.indptr[1:] - firsts
    if not batch.mean.all():
        wanted = np.concatenate([np.arange(first, end) for first, end in zip(firsts, batch.indptr[1:], strict=True)])
        rows = rows[torch.from_numpy(wanted)]
    states = served.embeds.vectors.index_select(0, upload(rows, served.device)).float()
    if len(states) > len(counts):
        on_device = upload(torch.from_numpy(lengths), served.device)
        states = torch.segment_reduce(states, "mean", lengths=on_device, unsafe=True)  # a check would wait for a GPU
    kept = upload(torch.from_numpy(np.arange(size) < batch.dimensions[:, None]), served.device)
    states = states * kept
    normalize = upload(torch.from_numpy(batch.normalize.copy()), served.device)[:, None]
    host = download(torch.where(normalize, torch.nn.functional.normalize(states), states))
    return PendingResult(
        lambda: _ragged(batch.dimensions, host.numpy()),
        lambda: without_numbers(np.flatnonzero(np.isnan(host.numpy()).any(1))),
    )


def _ragged(dimensions: Array, vectors: Array) -> GetEmbeddingResult:
    """The result with the first numbers of each of the vectors [N, hidden_size]."""
    wanted = np.arange(vectors.shape[1]) < dimensions[:, None]
    return GetEmbeddingResult(np.concatenate(([0], np.cumsum(dimensions))).astype(np.int32), vectors[wanted])
