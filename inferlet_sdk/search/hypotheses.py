"""Continuations with their scores."""

from __future__ import annotations

from dataclasses import dataclass

from inferlet_sdk.texts import shown


@dataclass(frozen=True)
class Hypothesis:
    """A continuation of a context."""

    tokens: tuple[int, ...]
    text: str
    score: float
    """The greater the better: the mean log-probability of its tokens, unless another function was given."""
    stop_reason: str
    """Why it ended: "stop", "length"."""

    def __repr__(self) -> str:
        return f"<Hypothesis {self.score:.4g}: {len(self.tokens)} tokens, {self.stop_reason}: {shown(self.text)}>"


def mean(logprobs: list[float]) -> float:
    """The mean log-probability of a continuation; 0 of an empty one, which is certain."""
    return sum(logprobs) / len(logprobs) if logprobs else 0.0
