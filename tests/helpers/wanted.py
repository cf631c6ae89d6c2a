"""What calls must be answered with: numbers of a reference, and how close to them is right.

Answers are compared as plain values, as they also come out of the sandbox.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pie_control.calls.embedding.get_embedding import Vector
from pie_control.calls.fused.sample import ScoredToken
from pie_control.calls.fused.verify import Verified
from pie_control.calls.introspective_forward.forward_with_scores import AttentionScores
from pie_control.calls.output_text.get_logprobs import Logprobs
from pie_control.calls.output_text.get_next_dist import Dists
from pie_control.calls.values import Token

Floats = NDArray[np.float64]


def plain(answer: Any) -> Any:
    """The value of a future as lists and numbers; None for what only gets done."""
    kinds: dict[type, Callable[[Any], Any]] = {
        Token: lambda one: one.token,
        ScoredToken: lambda one: [one.token, one.tokens.tolist(), one.logprobs.tolist()],
        Verified: _listed,
        Logprobs: lambda one: one.logprobs.tolist(),
        AttentionScores: lambda one: one.scores.tolist(),
        Dists: _split,
        Vector: lambda one: np.frombuffer(b64decode(one.text), "<f4").tolist(),
        tuple: _listed,  # a decode run
    }
    found = kinds.get(type(answer))
    return None if found is None else found(answer)


def _listed(answer: Any) -> list[Any]:
    return list(answer)


def _split(dists: Dists) -> list[Any]:
    count = len(dists.rest)
    parts = zip(dists.tokens.reshape(count, -1), dists.probabilities.reshape(count, -1), dists.rest, strict=True)
    return [[tokens.tolist(), probabilities.tolist(), float(rest)] for tokens, probabilities, rest in parts]


class Wanted(Protocol):
    """The answer of a call."""

    def check(self, value: Any, close: float) -> None:
        """Raises AssertionError. `close`: by as much may numbers differ, relative to the largest of them."""


class Anything:
    """Of a call that only gets done."""

    def check(self, value: Any, close: float) -> None:
        pass


@dataclass(frozen=True)
class Exactly:
    """A token, or tokens."""

    value: Any

    def check(self, value: Any, close: float) -> None:
        assert value == self.value, f"{value} in place of {self.value}"


@dataclass(frozen=True)
class Numbers:
    """Such as log-probabilities. `scale`: the largest number that they were worked out from. A log-probability is the
    difference of a logit and the logarithm of a sum, which are float32: it is as inexact as these, however small."""

    values: Sequence[float]
    scale: float = 1.0

    def check(self, value: Any, close: float) -> None:
        assert len(value) == len(self.values), f"{len(value)} numbers in place of {len(self.values)}"
        if len(value):
            far = np.abs(np.array(value) - np.array(self.values)).max()
            assert far <= close * max(self.scale, np.abs(self.values).max()), f"numbers differ by {far}"


@dataclass(frozen=True)
class Distribution:
    """The `k` most probable of these, and their sum less than one."""

    probabilities: Floats
    k: int

    def check(self, value: Any, close: float) -> None:
        tokens, probabilities, rest = value
        expected = self.probabilities
        assert len(tokens) == len(set(tokens)) == len(probabilities) == min(self.k, len(expected))
        Numbers(expected[tokens].tolist()).check(probabilities, close)
        assert probabilities == sorted(probabilities, reverse=True), "they are not in order"
        others = np.delete(expected, tokens)
        assert others.max(initial=0.0) <= min(probabilities) + close, "a more probable token was left out"
        assert abs(rest - others.sum()) <= max(close, 1e-6), f"the rest is {rest}"


@dataclass(frozen=True)
class Each:
    """Several distributions."""

    wanted: Sequence[Distribution]

    def check(self, value: Any, close: float) -> None:
        assert len(value) == len(self.wanted), f"{len(value)} distributions in place of {len(self.wanted)}"
        for one, wanted in zip(value, self.wanted, strict=True):
            wanted.check(one, close)


@dataclass(frozen=True)
class Scored:
    """A token with log-probabilities: its own, and those of the most probable tokens."""

    token: int
    logprobs: Floats
    alternatives: int

    def check(self, value: Any, close: float) -> None:
        token, tokens, logprobs = value
        assert token == self.token, f"token {token} in place of {self.token}"
        assert tokens[0] == token
        assert len(tokens) == len(logprobs) == 1 + min(self.alternatives, len(self.logprobs))
        scale = float(np.abs(self.logprobs).max())
        Numbers(self.logprobs[tokens].tolist(), scale).check(logprobs, close)
        least = min(logprobs[1:], default=np.inf)
        others = np.delete(self.logprobs, tokens[1:]) if self.alternatives else self.logprobs[:0]
        assert others.max(initial=-np.inf) <= least + close * scale, "an alternative was left out"
