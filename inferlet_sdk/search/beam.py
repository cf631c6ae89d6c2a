"""Beam search: the most likely continuations, by the mean log-probability of their tokens.

Each step reads the distribution behind every beam, at once, and keeps the best of all continuations by one token. The
first of those that go on from a beam takes it over, so only where beams part are there forks.
"""

from __future__ import annotations

from asyncio import gather
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import log
from typing import NamedTuple

from inferlet_sdk.sequences.sequence import TokenSequence
from inferlet_sdk.sequences.stepping import next_dist

from .hypotheses import Found, Hypothesis, mean


@dataclass
class Beam:
    """A continuation with the branch that holds it."""

    branch: TokenSequence
    logprobs: list[float] = field(default_factory=list)
    ended: str = ""  # why

    @property
    def score(self) -> float:
        return mean(self.logprobs)

    def found(self, start: int) -> Found:
        """`start`: the number of tokens before it."""
        tokens = self.branch.tokens[start:]
        text = self.branch.detokenize(tokens) if tokens else ""
        return Found(Hypothesis(tuple(tokens), text, self.score, self.ended), self.branch)


class _Step(NamedTuple):
    """A beam with one token more."""

    beam: Beam
    token: int
    logprob: float

    @property
    def total(self) -> float:
        return sum(self.beam.logprobs) + self.logprob


async def search(sequence: TokenSequence, width: int, length: int, stop: Collection[int]) -> list[Found]:
    """The best continuations, the best one first, each of at most `length` tokens; the caller closes their branches. A
    stop token ends a beam, counts for its score, and is not kept."""
    start, live, ended = len(sequence.tokens), [Beam(sequence.fork())], list[Beam]()
    try:
        for _ in range(length):
            steps = await _steps(live, width, stop)
            live, done = _take(live, steps, width, stop)
            ended = _best([*ended, *done], width)
            if not live or (len(ended) == width and ended[-1].score >= max(beam.score for beam in live)):
                break
        for beam in live:
            beam.ended = "length"
        return [beam.found(start) for beam in _best([*ended, *live], width)]
    except BaseException:
        _close([*live, *ended])
        raise


async def _steps(live: list[Beam], width: int, stop: Collection[int]) -> list[_Step]:
    """The most likely continuations by one token, the best one first."""
    k = min(2 * width + len(stop), live[0].branch.info.max_dist)
    dists = await gather(*(next_dist(beam.branch, k, 1.0) for beam in live))
    steps = [
        _Step(beam, token, log(probability))
        for beam, dist in zip(live, dists, strict=True)
        for token, probability in zip(dist.tokens, dist.probabilities, strict=True)
        if probability
    ]
    return sorted(steps, key=lambda step: step.total, reverse=True)


def _take(live: list[Beam], steps: list[_Step], width: int, stop: Collection[int]) -> tuple[list[Beam], list[Beam]]:
    """The `width` best steps that go on, and the beams that end with one of the `width` best steps of all."""
    going = [step for step in steps if step.token not in stop][:width]
    ending = [step for step in steps[:width] if step.token in stop]
    done = [Beam(step.beam.branch.fork(), [*step.beam.logprobs, step.logprob], "stop") for step in ending]
    used: set[int] = set()
    beams = []
    for step in going:
        branch = step.beam.branch
        if id(branch) in used:
            branch = branch.fork()
        used.add(id(branch))
        beams.append(Beam(branch, [*step.beam.logprobs, step.logprob]))
    for beam, step in zip(beams, going, strict=True):  # not before all forks are made
        beam.branch.tokens.append(step.token)
    _close(beam for beam in live if id(beam.branch) not in used)
    return beams, done


def _best(beams: list[Beam], width: int) -> list[Beam]:
    """The `width` best ones, in order; closes the others."""
    ranked = sorted(beams, key=lambda beam: beam.score, reverse=True)
    _close(ranked[width:])
    return ranked[:width]


def _close(beams: Iterable[Beam]) -> None:
    for beam in beams:
        beam.branch.close()
