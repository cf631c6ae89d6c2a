"""Vectors of the model without weights."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pie_inference.protocol import GetEmbedding, GetEmbeddingResult


def pooled(batch: GetEmbedding, states: NDArray[np.float64]) -> GetEmbeddingResult:
    """The answer to a batch, from the states [R, hidden_size] at its embeds. Raises ValueError."""
    if (np.diff(batch.indptr) < 1).any() or not 1 <= batch.dimensions.min() <= batch.dimensions.max() <= states.shape[
        1
    ]:
        raise ValueError("a command names no embed, or wrong dimensions")
    vectors = []
    for n, (first, end) in enumerate(pairwise(batch.indptr.tolist())):
        vector = (states[first:end].mean(0) if batch.mean[n] else states[end - 1])[: batch.dimensions[n]]
        vectors.append(vector / np.linalg.norm(vector) if batch.normalize[n] else vector)
    ends = np.cumsum([0, *map(len, vectors)]).astype(np.int32)
    return GetEmbeddingResult(ends, np.concatenate([np.zeros(0), *vectors]).astype(np.float32))
