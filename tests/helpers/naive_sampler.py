"""Which token a sampler must choose, straight from its definition in float64, and whether rounding could change it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_control.calls.sampler import Sampler, SamplingParams, make_bias
from tests.helpers.undecided import Undecided

Floats = NDArray[np.float64]


@dataclass
class Drawing:
    """A sampler of the system, and the same numbers at random for the reference."""

    params: SamplingParams
    seed: int
    bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.params, self.seed, make_bias(list(self.bias.items())))
        self._random = random.Random(self.seed)
        self._next: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """As `create_sampler` takes them."""
        given = self.params
        return {
            "temperature": given.temperature,
            "top_k": given.top_k,
            "top_p": given.top_p,
            "min_p": given.min_p,
            "repetition_penalty": given.repetition,
            "frequency_penalty": given.frequency,
            "presence_penalty": given.presence,
            "typical_p": given.typical_p,
            "logit_bias": {str(token): value for token, value in self.bias.items()},
            "seed": self.seed,
        }

    def numbers(self, count: int) -> list[float]:
        """The first numbers of its seed, if none was drawn before."""
        again = random.Random(self.seed)
        return [again.random() for _ in range(count)]

    def next(self) -> float:
        """The number that the sampler draws next; the same one until it is `used`."""
        if self._next is None:
            self._next = self._random.random()
        return self._next

    def used(self) -> None:
        self._next = None


def choose(
    logits: Floats,
    drawing: Drawing,
    uniform: float,
    close: float,
    in_order: bool,
    recent: Sequence[int] = (),
    allowed: Sequence[int] | None = None,
) -> int:
    """The token of a row. `in_order`: candidates are drawn from in the order of their ids where no bound ranks them.

    Raises Undecided where logits that differ by `close` from these could give another one.
    """
    params, scores = drawing.params, logits.copy()
    for token, count in Counter(recent).items():
        seen = scores[token]
        seen = seen / np.float32(params.repetition) if seen > 0 else seen * np.float32(params.repetition)
        scores[token] = seen - count * np.float32(params.frequency) - np.float32(params.presence)
    for token, value in drawing.bias.items():
        scores[token] += np.float32(value)
    if allowed is not None:
        forbidden = np.ones(len(scores), np.bool_)
        forbidden[list(allowed)] = False
        scores[forbidden] = -np.inf
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    if params.temperature == 0:
        _decide(ranked[0] - ranked[1:2], close)
        return int(order[0])
    temperature = float(np.float32(params.temperature))
    slack = 4 * close / temperature  # of a share of the whole
    weights = np.exp((ranked - ranked[0]) / temperature)
    count = int((weights > 0).sum())
    is_bounded = params.top_k > 0 or params.top_p < 1 or params.min_p > 0 or params.typical_p < 1
    if params.top_k and params.top_k < count:
        count = params.top_k
        _decide(ranked[count - 1] - ranked[count : count + 1], close)
    weights = weights[:count]
    before = (weights.cumsum() - weights) / weights.sum()
    if params.top_p < 1:
        bound = float(np.float32(params.top_p))
        _decide(before - bound, slack)
        count = min(count, int((before < bound).sum()))
    if params.min_p > 0:
        bound = float(np.float32(params.min_p))
        _decide(weights / bound - 1, slack)
        count = min(count, int((weights >= bound).sum()))
    order, ranked, weights = order[: max(count, 1)], ranked[: max(count, 1)], weights[: max(count, 1)]
    gaps = -np.diff(ranked)
    if params.typical_p < 1:
        shares = weights / weights.sum()
        surprise = -np.log(shares)
        far = np.abs(surprise - (shares * surprise).sum())
        by_far = np.argsort(far, kind="stable")
        order, weights, gaps = order[by_far], weights[by_far], np.diff(far[by_far]) / 4
        before = (weights.cumsum() - weights) / weights.sum()
        bound = float(np.float32(params.typical_p))
        _decide(before - bound, 4 * slack)
        kept = max(1, int((before < bound).sum()))
        _decide(gaps[kept - 1 : kept], slack)
        order, weights, gaps = order[:kept], weights[:kept], gaps[: kept - 1]
    elif in_order and not is_bounded:
        by_id = np.argsort(order)
        order, weights, gaps = order[by_id], weights[by_id], np.full(len(order) - 1, np.inf)
    ends = weights.cumsum() / weights.sum()
    place = min(int(np.searchsorted(ends, uniform, "right")), len(order) - 1)
    _decide(ends[:-1] - uniform, 2 * slack)
    _decide(gaps[max(place - 1, 0) : place + 1], close)
    return int(order[place])


def _decide(differences: Floats, close: float) -> None:
    if len(differences) and float(np.abs(differences).min()) < close:
        raise Undecided
