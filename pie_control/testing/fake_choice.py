"""How the model without weights chooses a token from scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pie_inference.protocol import Sample, Verify

Floats = NDArray[np.float64]


def forbid(batch: Sample, n: int, scores: Floats) -> None:
    """Sets the scores of tokens that row n may not sample to minus infinity."""
    if batch.allowed_rows[n] < 0:
        return
    bits = batch.allowed[batch.allowed_rows[n]].astype(np.uint8)
    allowed = np.unpackbits(bits, count=len(scores), bitorder="little").astype(np.bool_)
    if not allowed.any():
        raise ValueError("the mask allows no token")
    scores[~allowed] = -np.inf


def choose(batch: Sample | Verify, n: int, uniform: float, scores: Floats) -> int:
    """The token that the parameters of command n choose."""
    if batch.temperature[n] == 0:
        return int(scores.argmax())
    order = np.argsort(-scores, kind="stable")
    probabilities = softmax(scores[order] / batch.temperature[n])
    kept = kept_prefix(probabilities, int(batch.top_k[n]), float(batch.top_p[n]), float(batch.min_p[n]))
    mass = np.cumsum(probabilities[:kept])
    return int(order[min(int(np.searchsorted(mass, uniform * mass[-1], "right")), kept - 1)])


def softmax(scores: Floats) -> Floats:
    weights: Floats = np.exp(scores - scores.max())
    weights /= weights.sum()
    return weights


def kept_prefix(probabilities: Floats, top_k: int, top_p: float, min_p: float) -> int:
    """How many of the sorted probabilities remain candidates."""
    top = len(probabilities) if top_k == 0 else min(top_k, len(probabilities))
    before = np.cumsum(probabilities[:top]) - probabilities[:top]
    in_nucleus = before < top_p * probabilities[:top].sum() if top_p < 1 else np.full(top, True)
    likely = probabilities[:top] >= min_p * probabilities[0]
    return max(1, int((in_nucleus & likely).sum()))
