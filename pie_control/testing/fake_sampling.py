"""How the model without weights chooses tokens from scores, float64 [vocab_size] for a row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_inference.protocol import Sample, SampleResult, Verify

Floats = NDArray[np.float64]
Integers = NDArray[np.int32]


def bias(batch: Sample | Verify, n: int, scores: Floats) -> None:
    """Adds the logit bias of command n, in place."""
    if batch.bias_indptr is None or batch.bias_tokens is None or batch.bias_values is None:
        return
    own = slice(batch.bias_indptr[n], batch.bias_indptr[n + 1])
    scores[batch.bias_tokens[own]] += batch.bias_values[own]


def scored(batch: Sample, tokens: Integers, scores: Floats) -> SampleResult:
    """Tokens with log-probabilities where they are asked for; `scores` [N, vocab_size] as they were at first."""
    counts, listed, logprobs = [0], [np.zeros(0, np.int32)], [np.zeros(0)]
    assert batch.alternatives is not None
    for row, alternatives in enumerate(batch.alternatives.tolist()):
        if alternatives >= 0:
            best = np.argsort(-scores[row], kind="stable")[:alternatives]
            listed.append(np.concatenate([tokens[row : row + 1], best]))
            logprobs.append(np.log(softmax(scores[row]))[listed[-1]])
        counts.append(sum(map(len, listed)))
    return SampleResult(
        tokens,
        np.array(counts, np.int32),
        np.concatenate(listed).astype(np.int32),
        np.concatenate(logprobs).astype(np.float32),
    )


def forbid(batch: Sample, n: int, scores: Floats) -> None:
    """Sets the scores of tokens that row n may not sample to minus infinity."""
    if batch.allowed is None or batch.allowed_rows is None or batch.allowed_rows[n] < 0:
        return
    bits = batch.allowed[batch.allowed_rows[n]].astype(np.uint8)
    allowed = np.unpackbits(bits, count=len(scores), bitorder="little").astype(np.bool_)
    if not allowed.any():
        raise ValueError("the mask allows no token")
    scores[~allowed] = -np.inf


def penalize(batch: Sample, n: int, recent: NDArray[np.int64], scores: Floats) -> None:
    """Lowers the scores of the recent tokens of row n."""
    tokens, counts = np.unique(recent, return_counts=True)
    seen, repetition = scores[tokens], _parameter(batch.repetition, n, 1)
    penalized = np.where(seen > 0, seen / repetition, seen * repetition)
    scores[tokens] = penalized - counts * _parameter(batch.frequency, n, 0) - _parameter(batch.presence, n, 0)


def _parameter(column: NDArray[Any] | None, n: int, plain: float) -> float:
    """The parameter of row n; `plain` where the column is left out."""
    return plain if column is None else float(column[n])


def choose(batch: Sample | Verify, n: int, uniform: float, scores: Floats) -> int:
    """The token that the parameters of command n choose."""
    if batch.temperature[n] == 0:
        return int(scores.argmax())
    order = np.argsort(-scores, kind="stable")
    probabilities = softmax(scores[order] / batch.temperature[n])
    top_k, top_p, min_p = _parameter(batch.top_k, n, 0), _parameter(batch.top_p, n, 1), _parameter(batch.min_p, n, 0)
    kept = kept_prefix(probabilities, int(top_k), top_p, min_p)
    order, probabilities = order[:kept], probabilities[:kept]
    if (typical_p := _parameter(batch.typical_p, n, 1)) < 1:
        typical = most_typical(probabilities, typical_p)
        order, probabilities = order[typical], probabilities[typical]
    mass = np.cumsum(probabilities)
    return int(order[min(int(np.searchsorted(mass, uniform * mass[-1], "right")), len(order) - 1)])


def most_typical(probabilities: Floats, mass: float) -> NDArray[np.int64]:
    """The tokens that are closest in surprise to the entropy of all, in this order, until they reach the mass."""
    shares = probabilities / probabilities.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -np.log(shares)
        entropy = np.nansum(shares * surprise)
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    before = np.cumsum(shares[order]) - shares[order]
    return order[: max(1, int(((before < mass) & (shares[order] > 0)).sum()))]


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
