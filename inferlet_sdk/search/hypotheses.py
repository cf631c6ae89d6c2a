"""Continuations with their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inferlet_sdk import traits
from inferlet_sdk.errors import QuotaExceeded
from inferlet_sdk.sequences.queues import MANY_CONTEXTS
from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.texts import shown


@dataclass(frozen=True)
class Hypothesis:
    """A continuation of a context."""

    tokens: tuple[int, ...]
    text: str
    score: float
    """The greater the better: the mean log-probability of its tokens, or of what ended it where there are none, unless
    another function was given."""
    stop_reason: str
    """Why it ended: "stop", "length"."""

    def __repr__(self) -> str:
        return f"<Hypothesis {self.score:.4g}: {len(self.tokens)} tokens, {self.stop_reason}: {shown(self.text)}>"


class Found(NamedTuple):
    """A continuation, and the branch of a context that holds it."""

    hypothesis: Hypothesis
    branch: TokenSequence


def check_count(count: int, length: int, name: str) -> None:
    """Raises QuotaExceeded if the inferlet may not have the pages of so many continuations. One token needs none."""
    if count > MANY_CONTEXTS and length > 1 and count > (most := traits.usage().max_pages):
        raise QuotaExceeded(
            f"{name}: each of {count} continuations takes a page, and an inferlet may have {most}: ask for fewer"
        )


def keep_best(sequence: TokenSequence, found: Sequence[Found]) -> TokenSequence:
    """The sequence goes on with the first continuation, and all but one are closed; returns that one."""
    best, *others = found
    filled = len(best.branch.tokens) - len(best.hypothesis.tokens) != len(sequence.tokens)  # by another task meanwhile
    for other in others:
        other.branch.close()
    if filled or sequence.has_own_queue:  # whose number the program knows
        sequence.tokens += best.hypothesis.tokens
        best.branch.close()
        return sequence
    sequence.close()
    return best.branch


def mean(logprobs: list[float]) -> float:
    """The mean log-probability of a continuation; 0 of an empty one, which is certain."""
    return sum(logprobs) / len(logprobs) if logprobs else 0.0
